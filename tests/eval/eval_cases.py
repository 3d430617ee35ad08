"""What the tests of eval/ share: a bigram model whose probabilities are known, small models, runs with checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from asyncpp import records
from asyncpp.config import Config, from_hydra
from asyncpp.hydra_command import compose_overrides
from asyncpp.model.config import LlamaConfig
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.model.llama import Decoder, build
from asyncpp.trainer.checkpoint.config import CheckpointConfig
from asyncpp.trainer.checkpoint.manifest import CheckpointInfo
from asyncpp.trainer.checkpoint.names import CHECKPOINTS_FOLDER, correction_name, weight_name
from asyncpp.trainer.checkpoint.writer import CheckpointWriter
from eval.checkpoint import Evaluated

LETTERS = "_abcdefg"  # one token each; the first ends a document


def letters_tokenizer() -> Tokenizer:
    """A token a letter; spaces vanish."""
    tokenizer = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(LETTERS)}, unk_token="_"))
    split = pre_tokenizers.Split("", "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def bigram_model(probabilities: Tensor) -> Decoder:
    """A model without layers, for which a token's successor has the distribution of that row of ``probabilities``.

    Embeddings are unit vectors, which the norm makes sqrt(V) long.
    """
    size = len(probabilities)
    shape = LlamaConfig("bigram", size, 0, size, 1, 1, 1, 1e4, 1e-300, 1.0, False)
    model = build(shape)
    weights = {
        "embedding.weight": torch.eye(size, dtype=torch.float64),
        "norm.weight": torch.ones(size, dtype=torch.float64),
        "head.weight": probabilities.double().log().T.contiguous() / size**0.5,
    }
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False)


def bigram(probabilities: Tensor, max_length: int = 32) -> Evaluated:
    return Evaluated(
        folder=Path(),
        name="bigram",
        step=None,
        model_digest="",
        model=bigram_model(probabilities),
        vocab_size=len(LETTERS),
        tokenizer=letters_tokenizer(),
        prefix_token=0,
        max_length=max_length,
    )


def small_model(config: LlamaConfig, seed: int, dtype: torch.dtype = torch.float64) -> Decoder:
    """The model with weights as at the start of a run, ten times as large so that tokens matter."""
    model = build(config)
    infos = parameter_infos(config)
    drawn = zip(infos, initial_weights(config, seed), strict=True)
    weights = {info.name: weight.to(dtype) * (10 if weight.dim() > 1 else 1) for info, weight in drawn}
    weights |= {alias: weights[name] for alias, name in tied_aliases(config).items()}
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False)


def config_of(*overrides: str) -> Config:
    return from_hydra(compose_overrides(list(overrides)))


def make_run(folder: Path, config: Config, step: int = 5, previous: Mapping[str, Tensor] | None = None) -> Path:
    """A run folder with one checkpoint, as ``add_checkpoint`` makes it."""
    folder.mkdir(parents=True)
    (folder / records.CONFIG_FILE).write_text(config.to_yaml())
    add_checkpoint(folder, config, step, previous=previous)
    return folder


def add_checkpoint(
    run: Path, config: Config, step: int, seed: int | None = None, previous: Mapping[str, Tensor] | None = None
) -> None:
    """Weights drawn with ``seed`` (None: with ``step``); ``previous``: the correction's last update."""
    infos = parameter_infos(config.model)
    drawn = initial_weights(config.model, step if seed is None else seed)
    state = {weight_name(info.name): weight for info, weight in zip(infos, drawn, strict=True)}
    state |= {correction_name(name, "previous_update"): update for name, update in (previous or {}).items()}
    with CheckpointWriter(run / CHECKPOINTS_FOLDER, CheckpointConfig(9, None, 0, asynchronous=False)) as writer:
        writer.save(CheckpointInfo(step, config.scientific()), state)
        writer.wait()


def small_run(token_root: Path, sequence_length: int = 96) -> list[str]:
    """The overrides of a small model on the tokens of ``token_root``."""
    return [
        "data=local", f"data.root={token_root}", f"data.path={token_root / 'raw.jsonl'}", "data.vocab_size=300",
        "data.validation_fraction=0.3", f"data.sequence_length={sequence_length}", "model=tiny", "model.vocab_size=300",
        "model.num_layers=2", "model.hidden_size=24", "model.ffn_size=40", "model.num_heads=6", "model.num_kv_heads=2",
        "model.init_std=0.3",
    ]  # fmt: skip
