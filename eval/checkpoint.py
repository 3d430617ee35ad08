"""What ``ckpt`` names, as a model that can be scored: a run's checkpoint, or an exported model."""

from __future__ import annotations

import glob
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asyncpp.errors import ConfigError, require
from asyncpp.export import final_weights, located, open_checkpoint, require_tokens_of, tokenizer_of
from asyncpp.records import CONFIG_FILE
from asyncpp.saved_config import read_config
from asyncpp.trainer.checkpoint.names import CHECKPOINTS_FOLDER, step_folders, step_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from asyncpp.model.config import LlamaConfig
    from asyncpp.model.llama import Stage

HF_CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class Evaluated:
    """A model with its weights and tokenizer.

    folder: whose results are kept beside it. name: of its checkpoint there.
    prefix_token: what stands before a text without context, the token between training documents.
    max_length: what the model was trained on, tokens.
    """

    folder: Path
    name: str
    model: Stage
    vocab_size: int
    tokenizer: Tokenizer
    prefix_token: int
    max_length: int


def find(patterns: list[str]) -> list[Path]:
    """The folders that ``ckpt`` names: paths, or globs, of which what is no checkpoint is passed over with a warning.

    Raises ConfigError for a path that is no run, checkpoint or exported model, and a glob that leaves nothing.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        if not glob.has_magic(pattern) or Path(pattern).exists():
            require(_is_model(Path(pattern)), "ckpt", pattern, _accepted(Path(pattern)))
            found[Path(pattern)] = None
            continue
        matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207, may be absolute
        matches = [match for match in matches if match.is_dir()]
        models = [match for match in matches if _is_model(match)]
        require(bool(models), "ckpt", pattern, f"matches {len(matches)} folders, but no run, checkpoint or model")
        for match in matches:
            if match not in models:
                print(f"warning: passing over {match}: {_accepted(match)}", file=sys.stderr)
        found |= dict.fromkeys(models)
    return list(found)


def load(ckpt: Path, reading: str, tokenizer: str | None, dtype: str, device: str) -> Evaluated:
    """The model that ``ckpt`` names, one of those that ``find`` gives. Raises ConfigError."""
    if (ckpt / HF_CONFIG_FILE).is_file():
        return _from_transformers(ckpt, reading, tokenizer, dtype, device)
    run_folder, step = located(ckpt)
    config = read_config("ckpt", run_folder)
    tokenizer_file = tokenizer_of(config.data, tokenizer)

    from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged

    try:
        checkpoint = open_checkpoint(run_folder, step)
        if tokenizer is None:
            require_tokens_of(config, checkpoint)
        weights = final_weights(config, checkpoint, reading)
    except CheckpointDamaged as damage:
        raise ConfigError("ckpt", ckpt, f"expected a whole checkpoint: {damage}") from None
    return Evaluated(
        folder=run_folder,
        name=f"step-{checkpoint.info.step:08d}",
        model=_built(config.model, weights, dtype, device),
        vocab_size=config.model.vocab_size,
        tokenizer=_read_tokenizer(tokenizer_file.path, config.data.vocab_size),
        prefix_token=tokenizer_file.end_of_document_id,
        max_length=config.data.sequence_length,
    )


def _from_transformers(ckpt: Path, reading: str, tokenizer: str | None, dtype: str, device: str) -> Evaluated:
    from asyncpp.model.hf_config import read_hf_config
    from asyncpp.model.hf_folder import read_model_config, read_weights
    from asyncpp.model.layout import parameter_infos

    require(reading == "x", "weights", reading, f"expected x: {ckpt} has the weights that it was exported with")
    config = read_model_config("ckpt", ckpt)
    infos = parameter_infos(config)
    try:
        weights = read_weights(ckpt, config, infos)
    except ConfigError as error:
        raise ConfigError("ckpt", ckpt, error.accepted) from None
    described = read_hf_config("ckpt", ckpt)
    for name in ("bos_token_id", "max_position_embeddings"):
        accepted = f"expected a {HF_CONFIG_FILE} with a whole number as {name}"
        require(type(described.get(name)) is int, "ckpt", ckpt, accepted)
    file = Path(tokenizer or ckpt) / "tokenizer.json"
    return Evaluated(
        folder=ckpt,
        name="model",
        model=_built(config, {info.name: w for info, w in zip(infos, weights, strict=True)}, dtype, device),
        vocab_size=config.vocab_size,
        tokenizer=_read_tokenizer(file, config.vocab_size),
        prefix_token=described["bos_token_id"],
        max_length=described["max_position_embeddings"],
    )


def _built(config: LlamaConfig, weights: dict[str, Tensor], dtype: str, device: str) -> Stage:
    import torch

    from asyncpp.model.layout import tied_aliases
    from asyncpp.model.llama import build

    model = build(config)
    placed = {name: weight.to(device, getattr(torch, dtype)) for name, weight in weights.items()}
    placed |= {alias: placed[name] for alias, name in tied_aliases(config).items()}
    model.load_state_dict(placed, assign=True)
    return model.requires_grad_(False)


def _read_tokenizer(file: Path, vocab_size: int) -> Tokenizer:
    from asyncpp.data.tokenizer import read_tokenizer

    require(file.is_file(), "tokenizer", file.parent, f"expected a folder with a {file.name}")
    try:
        tokenizer = read_tokenizer(file)
    except ConfigError as error:
        raise ConfigError("tokenizer", file.parent, error.accepted) from None
    size = tokenizer.get_vocab_size()
    accepted = f"expected the model's own, of at most {vocab_size} entries, not one of {size}"
    require(size <= vocab_size, "tokenizer", file.parent, accepted)
    return tokenizer


def _is_model(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    if (folder / HF_CONFIG_FILE).is_file():
        return True
    if step_of(folder.resolve()) is not None:
        return (folder.resolve().parents[1] / CONFIG_FILE).is_file()
    return (folder / CONFIG_FILE).is_file() and bool(step_folders(folder / CHECKPOINTS_FOLDER))


def _accepted(folder: Path) -> str:
    if not folder.exists():
        return "there is no such folder"
    if (folder / CONFIG_FILE).is_file():
        return f"expected a run with a checkpoint in {CHECKPOINTS_FOLDER}/"
    return f"expected a run's folder, one of its checkpoints, or an exported model with a {HF_CONFIG_FILE}"
