"""Windows of random tokens, and the small model as an ordinary module that holds its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from asyncpp.config import Config
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos
from asyncpp.model.llama import build

NUM_STEPS = 20


@pytest.fixture
def windows_by_step() -> list[Tensor]:
    """Tokens int64 (4, 10) for every step, learnable: each row counts upwards from a random start."""
    generator = torch.Generator().manual_seed(7)
    starts = torch.randint(0, 61, (NUM_STEPS, 4, 1), generator=generator)
    return list((starts + torch.arange(10)) % 61)


def module_with_weights(config: Config) -> nn.Module:
    """The untied model as a module with ordinary parameters, at the initial weights of ``config``."""
    module = build(config.model).to_empty(device="cpu").to(getattr(torch, config.trainer.dtype))
    values = dict(
        zip(map(name_of, parameter_infos(config.model)), initial_weights(config.model, config.seed), strict=True)
    )
    module.load_state_dict(values)
    return module


def name_of(parameter) -> str:
    return parameter.name


def loss_of(module: nn.Module, windows: Tensor) -> Tensor:
    return module(windows[:, :-1], windows[:, 1:])


def learning_rates(config: Config) -> list[float]:
    steps = range(config.trainer.num_steps)
    return [config.optimizer.lr * config.lr_schedule.factor(step, config.trainer.num_steps) for step in steps]
