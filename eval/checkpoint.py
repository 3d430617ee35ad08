"""What ``ckpt`` names, as a model that can be scored: a run's checkpoint, or an exported model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asyncpp.errors import ConfigError, require
from asyncpp.export import final_weights, located, open_checkpoint, require_reading, require_tokens_of, tokenizer_of
from asyncpp.saved_config import read_config
from eval.search import HF_CONFIG_FILE

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from asyncpp.config import Config
    from asyncpp.model.config import LlamaConfig
    from asyncpp.model.llama import Decoder


@dataclass(frozen=True)
class Evaluated:
    """A model with its weights and tokenizer.

    folder: whose results are kept beside it. name: of its checkpoint there. step: updates done; None if exported.
    model_digest: of the weights as they were read, what is built of them, and the tokenizer.
    prefix_token: what stands before a text without context, the token between training documents.
    max_length: what the model was trained on, tokens.
    """

    folder: Path
    name: str
    step: int | None
    model_digest: str
    model: Decoder
    vocab_size: int
    tokenizer: Tokenizer
    prefix_token: int
    max_length: int


@dataclass(frozen=True)
class Described:
    """What is known of a model before its weights are read. tokenizer_file, and the others: as Evaluated has them."""

    config: LlamaConfig
    tokenizer_file: Path
    tokenizer: Tokenizer
    prefix_token: int
    max_length: int


def describe(folder: Path, reading: str, tokenizer: str | None) -> Described:
    """The model of ``folder``, a run's or an exported model's. Raises ConfigError where it cannot be scored so."""
    if (folder / HF_CONFIG_FILE).is_file():
        return _describe_exported(folder, reading, tokenizer)
    return _describe_run(read_config("ckpt", folder), reading, tokenizer)


def _describe_run(config: Config, reading: str, tokenizer: str | None) -> Described:
    require_reading(config, reading)
    file = tokenizer_of(config.data, tokenizer)
    return Described(
        config=config.model,
        tokenizer_file=file.path,
        tokenizer=_read_tokenizer(file.path, config.data.vocab_size),
        prefix_token=file.end_of_document_id,
        max_length=config.data.sequence_length,
    )


def _describe_exported(folder: Path, reading: str, tokenizer: str | None) -> Described:
    from asyncpp.model.hf_config import read_hf_config
    from asyncpp.model.hf_folder import read_model_config

    require(reading == "x", "weights", reading, "expected x: an exported model has those of its export")
    config = read_model_config("ckpt", folder)
    described = read_hf_config("ckpt", folder)
    for name in ("bos_token_id", "max_position_embeddings"):
        accepted = f"expected a {HF_CONFIG_FILE} with a whole number as {name}"
        require(type(described.get(name)) is int, "ckpt", folder, accepted)
    file = Path(tokenizer or folder) / "tokenizer.json"
    return Described(
        config=config,
        tokenizer_file=file,
        tokenizer=_read_tokenizer(file, config.vocab_size),
        prefix_token=described["bos_token_id"],
        max_length=described["max_position_embeddings"],
    )


def load(ckpt: Path, reading: str, tokenizer: str | None, dtype: str, device: str) -> Evaluated:
    """The model that ``ckpt`` names, one of those that eval.search gives. Raises ConfigError, CheckpointDamaged."""
    if (ckpt / HF_CONFIG_FILE).is_file():
        described = _describe_exported(ckpt, reading, tokenizer)
        return _evaluated(ckpt, None, described, _exported_weights(ckpt, described.config), dtype, device)
    from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged

    if not ckpt.is_dir():
        raise CheckpointDamaged(ckpt, "is gone")  # since it was found
    run_folder, step = located(ckpt)
    config = read_config("ckpt", run_folder)
    described = _describe_run(config, reading, tokenizer)
    checkpoint = open_checkpoint(run_folder, step)
    if tokenizer is None:
        require_tokens_of(config, checkpoint)
    weights = final_weights(config, checkpoint, reading)
    return _evaluated(run_folder, checkpoint.info.step, described, weights, dtype, device)


def _exported_weights(folder: Path, config: LlamaConfig) -> dict[str, Tensor]:
    from asyncpp.model.hf_folder import read_weights
    from asyncpp.model.layout import parameter_infos

    infos = parameter_infos(config)
    try:
        return dict(zip([info.name for info in infos], read_weights(folder, config, infos), strict=True))
    except ConfigError as error:
        raise ConfigError("ckpt", folder, error.accepted) from None


def _evaluated(
    folder: Path, step: int | None, described: Described, weights: Mapping[str, Tensor], dtype: str, device: str
) -> Evaluated:
    return Evaluated(
        folder=folder,
        name="model" if step is None else f"step-{step:08d}",
        step=step,
        model_digest=_digest(weights, described.config, described.tokenizer_file),
        model=_built(described.config, weights, dtype, device),
        vocab_size=described.config.vocab_size,
        tokenizer=described.tokenizer,
        prefix_token=described.prefix_token,
        max_length=described.max_length,
    )


def _digest(weights: Mapping[str, Tensor], config: LlamaConfig, tokenizer_file: Path) -> str:
    """Of all that makes a score beside the task and its settings, whatever the folder is called."""
    import xxhash

    from asyncpp.trainer.checkpoint.tensor_file import bytes_of

    digest = xxhash.xxh3_128(repr(config).encode())
    digest.update(tokenizer_file.read_bytes())
    for name, weight in weights.items():
        digest.update(name.encode())
        digest.update(bytes_of(weight))
    return digest.hexdigest()


def _built(config: LlamaConfig, weights: Mapping[str, Tensor], dtype: str, device: str) -> Decoder:
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
