"""Initial weights: a function of the config, the seed and a parameter's name, so that no split changes them.

Matrices, embedding and head are drawn from N(0, init_std²); the two matrices of a layer that write to the
residual stream (attention.o and down, of every expert) from N(0, init_std² / (2 num_layers)), which keeps the stream's
variance from growing with depth (GPT-2, section 2.3; nanotron, which trained SmolLM2, does the same).
Gains of norms are one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from asyncpp.model.config import LlamaConfig
from asyncpp.model.hf_folder import read_weights
from asyncpp.model.layout import parameter_infos
from asyncpp.parameters import ParameterInfo, Role

_RESIDUAL_WRITERS = (".attention.o.weight", ".down.weight")


def initial_weights(config: LlamaConfig, seed: int, infos: Sequence[ParameterInfo] | None = None) -> list[Tensor]:
    """The weights before the first update, fp32 on the CPU: of ``infos``, or all in canonical order.

    They are drawn with ``seed``, or read from ``config.init_from``.
    """
    infos = parameter_infos(config) if infos is None else infos
    if config.init_from is not None:
        return read_weights(Path(config.init_from), config, infos)
    return [initial_weight(config, info, seed) for info in infos]


def initial_weight(config: LlamaConfig, info: ParameterInfo, seed: int) -> Tensor:
    """One parameter's initial values, fp32, drawn from a generator of its own."""
    if info.role is Role.NORM:
        return torch.ones(info.shape)
    std = config.init_std
    if info.name.endswith(_RESIDUAL_WRITERS):
        std /= math.sqrt(2 * config.num_layers)
    return torch.empty(info.shape).normal_(0.0, std, generator=_generator(seed, info.name))


def _generator(seed: int, name: str) -> torch.Generator:
    """A generator whose stream belongs to (seed, name). hash() will not do: it differs between processes."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
