"""What the optimizer tests share: the shipped configs, small models, and the core's way of applying an update."""

from __future__ import annotations

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from options import CONF, OPTIMIZERS
from torch import Tensor

from asyncpp.optim.adamw import AdamW
from asyncpp.optim.base import UpdateRule
from asyncpp.optim.config import MatrixOptimizerConfig, OptimizerConfig
from asyncpp.optim.groups import Optimizer
from asyncpp.optim.mars import MARS
from asyncpp.parameters import ParameterInfo, Role


def load_config(name: str, **overrides: object) -> OptimizerConfig:
    """conf/optimizer/<name>.yaml with ``overrides``, typed and checked as asyncpp.config does it."""
    values = OmegaConf.to_container(OmegaConf.load(CONF / "optimizer" / f"{name}.yaml"))
    schema = get_class(values.pop("_target_"))
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values, overrides))
    config.check("optimizer")
    return config


MATRIX_OPTIMIZERS = tuple(name for name in OPTIMIZERS if isinstance(load_config(name), MatrixOptimizerConfig))


def parameters(*shapes: tuple[int, ...], role: Role = Role.MATRIX) -> list[ParameterInfo]:
    return [ParameterInfo(f"layer{i}.weight", role, shape) for i, shape in enumerate(shapes)]


SMALL_MODEL = [
    ParameterInfo("embedding.weight", Role.EMBEDDING, (40, 16)),
    ParameterInfo("layers.0.norm.weight", Role.NORM, (16,)),
    ParameterInfo("layers.0.q.weight", Role.MATRIX, (16, 16)),
    ParameterInfo("layers.0.up.weight", Role.MATRIX, (24, 16)),
    ParameterInfo("layers.0.down.weight", Role.MATRIX, (16, 24)),
    ParameterInfo("layers.1.q.weight", Role.MATRIX, (16, 16)),
    ParameterInfo("layers.1.q.bias", Role.BIAS, (16,)),
    ParameterInfo("layers.1.experts.weight", Role.MATRIX, (3, 24, 16)),
    ParameterInfo("head.weight", Role.HEAD, (40, 16)),
]


def draw(infos: list[ParameterInfo], seed: int, dtype: torch.dtype = torch.float32, std: float = 1.0) -> list[Tensor]:
    """A normal tensor a parameter; the same numbers in every dtype, up to its rounding."""
    generator = torch.Generator().manual_seed(seed)
    return [(std * torch.randn(info.shape, generator=generator, dtype=torch.float64)).to(dtype) for info in infos]


def bound_groups(monkeypatch: pytest.MonkeyPatch, max_elements: int) -> None:
    """Let no group have more elements than this, but for one parameter by itself."""
    for rule in (UpdateRule, AdamW, MARS):
        monkeypatch.setattr(rule, "max_elements_on_cpu", max_elements)


def advance(optimizer: Optimizer, gradients: list[Tensor], weights: list[Tensor], lr_factor: float = 1.0) -> None:
    """x <- W(x) - u, group by group, in place."""
    for group in optimizer.groups:
        lr = group.peak_lr * lr_factor
        updates = group.rule.update(group.select(gradients), group.select(weights), lr)
        for weight, update in zip(group.select(weights), updates, strict=True):
            weight.mul_(group.rule.decay_factor(lr)).sub_(update)
