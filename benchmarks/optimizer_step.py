"""An optimizer step here over torch.optim's on the same tensors.

    python benchmarks/optimizer_step.py [json=true] [num_rounds=60]

AdamW: ``step``, what a run without a correction does (W and u in one kernel), and ``update``, what one with a
correction does (u first, then W and the subtraction, as the core applies them), over torch's fused and foreach steps.
Muon: the hidden matrices only, over torch.optim.Muon with the same Newton-Schulz dtype.

All in one process on one thread, a step of each in turn. The 10th percentiles of that thread's processor time are
compared: whatever else the machine does falls on all alike, and waiting for a core counts for none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from asyncpp.errors import check_count
from asyncpp.hydra_command import compose_overrides, typed
from asyncpp.model.layout import parameter_infos
from asyncpp.optim.config import AdamWConfig, MuonConfig
from asyncpp.optim.groups import Optimizer, build_optimizer
from asyncpp.parameters import ParameterInfo, Role
from common.command import run_benchmark
from common.race import race

MODELS = {
    "tiny": ["model=tiny"],
    "layers_of_135m": ["model=135m", "model.num_layers=2", "model.vocab_size=2048"],
}
DTYPES = ("float32", "bfloat16")


@dataclass
class Options:
    num_rounds: int = 60
    json: bool = False


@torch.no_grad()
def step_in_place(optimizer: Optimizer, gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    for group in optimizer.groups:
        group.rule.step(group.select(gradients), group.select(weights), group.peak_lr)


@torch.no_grad()
def update_and_apply(optimizer: Optimizer, gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    for group in optimizer.groups:
        group_weights = group.select(weights)
        updates = group.rule.update(group.select(gradients), group_weights, group.peak_lr)
        decay_factor = group.rule.decay_factor(group.peak_lr)
        for weight, update in zip(group_weights, updates, strict=True):
            weight.mul_(decay_factor).sub_(update)


def torch_parameters(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return parameters


def without_bfloat16(step: Callable[[], object]) -> None:
    """Run torch's Muon in the dtype of its weights: its Newton-Schulz has no other switch than its own cast."""
    with mock.patch.object(Tensor, "bfloat16", Tensor.clone):
        step()


def adamw_contenders(
    infos: Sequence[ParameterInfo], weights: Sequence[Tensor], gradients: Sequence[Tensor]
) -> dict[str, Callable[[], object]]:
    config = typed(compose_overrides(["optimizer=adamw"]), "optimizer", AdamWConfig)
    knobs = {"lr": config.lr, "betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
    parameters = partial(torch_parameters, weights, gradients)
    return {
        "adamw_step": partial(step_in_place, build_optimizer(config, infos, weights), gradients, weights),
        "adamw_update": partial(update_and_apply, build_optimizer(config, infos, weights), gradients, weights),
        "torch_fused": torch.optim.AdamW(parameters(), **knobs, fused=True).step,
        "torch_foreach": torch.optim.AdamW(parameters(), **knobs, foreach=True).step,
    }


def muon_contenders(
    dtype: str, infos: Sequence[ParameterInfo], weights: Sequence[Tensor], gradients: Sequence[Tensor]
) -> dict[str, Callable[[], object]]:
    overrides = ["optimizer=muon", f"optimizer.newton_schulz_dtype={dtype}"]
    config = typed(compose_overrides(overrides), "optimizer", MuonConfig)
    theirs = torch.optim.Muon(
        torch_parameters(weights, gradients),
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    ours = partial(update_and_apply, build_optimizer(config, infos, weights), gradients, weights)
    return {"muon": ours, "torch_muon": theirs.step if dtype == "bfloat16" else partial(without_bfloat16, theirs.step)}


def low_times_ms(contenders: dict[str, Callable[[], object]], num_rounds: int) -> dict[str, float]:
    """10th percentile of each contender's step, in ms of processor time, from ``num_rounds`` rounds of all in turn."""
    return {name: 1e3 * value for name, value in race(contenders, num_rounds, 0.1, time.thread_time).items()}


def measure_model(model: str, num_rounds: int) -> dict[str, float]:
    """Ratios of our times to torch's for one model, and the times in ms."""
    infos = parameter_infos(typed(compose_overrides(MODELS[model]), "model"))
    generator = torch.Generator().manual_seed(0)
    weights = [0.02 * torch.randn(info.shape, generator=generator) for info in infos]
    gradients = [torch.randn(info.shape, generator=generator) for info in infos]
    times_ms = low_times_ms(adamw_contenders(infos, weights, gradients), num_rounds)
    result = {
        f"{ours}_over_{theirs}": times_ms[ours] / times_ms[theirs]
        for ours in ("adamw_step", "adamw_update")
        for theirs in ("torch_fused", "torch_foreach")
    }
    matrices = [index for index, info in enumerate(infos) if info.role is Role.MATRIX]
    for dtype in DTYPES:
        contenders = muon_contenders(
            dtype, [infos[i] for i in matrices], [weights[i] for i in matrices], [gradients[i] for i in matrices]
        )
        muon_ms = low_times_ms(contenders, max(1, num_rounds // 3))
        result[f"muon_{dtype}_over_torch"] = muon_ms["muon"] / muon_ms["torch_muon"]
        times_ms |= {f"{name}_{dtype}": value for name, value in muon_ms.items()}
    return result | {f"{name}_ms": value for name, value in times_ms.items()}


def measure(options: Options) -> dict[str, dict[str, float]]:
    """By model."""
    check_count("num_rounds", options.num_rounds)
    torch.set_num_threads(1)
    return {model: measure_model(model, options.num_rounds) for model in MODELS}


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
