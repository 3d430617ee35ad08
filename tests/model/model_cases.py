"""Configs small enough for loops in fp64, the shipped ones, and how a test calls a stage."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from asyncpp.hydra_command import compose_overrides, typed
from asyncpp.model.auxiliary import Auxiliary
from asyncpp.model.config import LlamaConfig, MoEConfig
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos, tied_aliases

SHIPPED = Path(__file__).parents[2] / "conf" / "model"
SHIPPED_NAMES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))

_SHAPE = {
    "vocab_size": 61,
    "num_layers": 3,
    "hidden_size": 24,
    "num_heads": 6,
    "num_kv_heads": 2,
    "rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "init_std": 0.2,
    "tied_embeddings": False,
}
SMALL = LlamaConfig(name="small", ffn_size=40, **_SHAPE)
SMALL_MOE = MoEConfig(
    name="small_moe",
    ffn_size=16,
    num_experts=5,
    top_k=2,
    shared_ffn_size=12,
    load_balancing=0.5,  # large enough that a mistake shows in the gradients
    router_z=0.3,
    **_SHAPE,
)


def shipped(name: str) -> LlamaConfig:
    """The config that conf/model/<name>.yaml holds."""
    return typed(compose_overrides([f"model={name}"]), "model")


def leaves_of(config: LlamaConfig, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Initial weights by name, each tied alias a leaf of its own over the same values."""
    names = [info.name for info in parameter_infos(config)]
    values = dict(zip(names, (weight.to(dtype) for weight in initial_weights(config, seed=0)), strict=True))
    for alias, canonical in tied_aliases(config).items():
        values[alias] = values[canonical].detach()
    return {name: value.requires_grad_() for name, value in values.items()}


def call(stage: nn.Module, leaves: dict[str, Tensor], *inputs: Tensor | Auxiliary | None) -> Tensor:
    """Run a stage on the leaves that belong to it."""
    return functional_call(stage, {name: leaves[name] for name, _ in stage.named_parameters()}, inputs)


def random_tokens(config: LlamaConfig, batch: int = 2, sequence: int = 7) -> Tensor:
    return torch.randint(config.vocab_size, (batch, sequence), generator=torch.Generator().manual_seed(1))
