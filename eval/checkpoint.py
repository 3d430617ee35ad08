"""What ``ckpt`` names, as a model that can be scored: a run's checkpoint, or an exported model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asyncpp.errors import ConfigError, require
from asyncpp.export import final_weights, located, open_checkpoint, require_tokens_of, tokenizer_of
from asyncpp.saved_config import read_config
from eval.search import HF_CONFIG_FILE

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from asyncpp.model.config import LlamaConfig
    from asyncpp.model.llama import Stage


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
    model: Stage
    vocab_size: int
    tokenizer: Tokenizer
    prefix_token: int
    max_length: int


def load(ckpt: Path, reading: str, tokenizer: str | None, dtype: str, device: str) -> Evaluated:
    """The model that ``ckpt`` names, one of those that eval.search gives. Raises ConfigError, CheckpointDamaged."""
    if (ckpt / HF_CONFIG_FILE).is_file():
        return _from_transformers(ckpt, reading, tokenizer, dtype, device)
    from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged

    if not ckpt.is_dir():
        raise CheckpointDamaged(ckpt, "is gone")  # since it was found
    run_folder, step = located(ckpt)
    config = read_config("ckpt", run_folder)
    tokenizer_file = tokenizer_of(config.data, tokenizer)
    checkpoint = open_checkpoint(run_folder, step)
    if tokenizer is None:
        require_tokens_of(config, checkpoint)
    weights = final_weights(config, checkpoint, reading)
    own_tokenizer = _read_tokenizer(tokenizer_file.path, config.data.vocab_size)
    return Evaluated(
        folder=run_folder,
        name=f"step-{checkpoint.info.step:08d}",
        step=checkpoint.info.step,
        model_digest=_digest(weights, config.model, tokenizer_file.path),
        model=_built(config.model, weights, dtype, device),
        vocab_size=config.model.vocab_size,
        tokenizer=own_tokenizer,
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
        weights = dict(zip([info.name for info in infos], read_weights(ckpt, config, infos), strict=True))
    except ConfigError as error:
        raise ConfigError("ckpt", ckpt, error.accepted) from None
    described = read_hf_config("ckpt", ckpt)
    for name in ("bos_token_id", "max_position_embeddings"):
        accepted = f"expected a {HF_CONFIG_FILE} with a whole number as {name}"
        require(type(described.get(name)) is int, "ckpt", ckpt, accepted)
    file = Path(tokenizer or ckpt) / "tokenizer.json"
    own_tokenizer = _read_tokenizer(file, config.vocab_size)
    return Evaluated(
        folder=ckpt,
        name="model",
        step=None,
        model_digest=_digest(weights, config, file),
        model=_built(config, weights, dtype, device),
        vocab_size=config.vocab_size,
        tokenizer=own_tokenizer,
        prefix_token=described["bos_token_id"],
        max_length=described["max_position_embeddings"],
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


def _built(config: LlamaConfig, weights: Mapping[str, Tensor], dtype: str, device: str) -> Stage:
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
