"""From a checked configuration to what trains: the model's stages with their weights, optimizers and corrections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hydra.utils import get_class
from torch import Tensor

from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.model.llama import build
from asyncpp.optim.groups import build_optimizer
from asyncpp.pipeline.partition import even_split, indices_by_stage
from asyncpp.pipeline.simulator import Simulator
from asyncpp.pipeline.stage import StageState
from asyncpp.pipeline.weights import WeightVersions

if TYPE_CHECKING:
    from asyncpp.config import Config


def describe(config: Config) -> str:
    """The run's parameters, stages and groups of parameters, without allocating any of them."""
    parameters = parameter_infos(config.model)
    simulator = _simulator(config, [torch.empty(info.shape, device="meta") for info in parameters])
    lines = [f"{config.run_name()}: {sum(info.num_elements for info in parameters):,} parameters"]
    for stage in simulator.stages:
        delay = stage.profile.delays[stage.stage]
        lines.append(f"stage {stage.stage}: delay {delay}, {stage.num_parameters:,} parameters")
        lines.append(stage.optimizer.describe())
    return "\n".join(lines)


def build_simulator(config: Config) -> Simulator:
    """The training state before the first update."""
    device, dtype = torch.device(config.trainer.device), getattr(torch, config.trainer.dtype)
    return _simulator(config, [weight.to(device, dtype) for weight in initial_weights(config.model, config.seed)])


def _simulator(config: Config, weights: list[Tensor]) -> Simulator:
    parameters = parameter_infos(config.model)
    profile = config.delay.profile(config.pipeline)
    owned_by_stage = indices_by_stage(parameters, even_split(config.model.num_layers, profile.num_stages))

    def build_stage(stage: int, owned: list[int]) -> StageState:
        stage_weights: list[Tensor] = [weights[i] for i in owned]
        correction = get_class(config.correction.correction)
        return StageState(
            stage=stage,
            indices=owned,
            profile=profile,
            versions=WeightVersions(stage_weights, profile.delays[stage]),
            optimizer=build_optimizer(config.optimizer, [parameters[i] for i in owned], stage_weights),
            correction=correction(config.correction, stage_weights, profile.delays[stage], config.trainer.num_steps),
        )

    return Simulator(
        module=build(config.model),
        names=[parameter.name for parameter in parameters],
        aliases=tied_aliases(config.model),
        stages=[build_stage(stage, owned) for stage, owned in enumerate(owned_by_stage)],
        num_micro_batches=config.trainer.num_micro_batches,
        max_grad_norm=config.trainer.max_grad_norm,
    )
