"""From a checked configuration to what trains: the model's parts with their weights, optimizers and corrections."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from hydra.utils import get_class
from torch import Tensor

from asyncpp.correction.base import Correction
from asyncpp.data.tokens import end_of_document
from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.model.llama import Decoder, build
from asyncpp.optim.groups import build_optimizer
from asyncpp.parameters import ParameterInfo
from asyncpp.pipeline.clipping import CLIPPINGS, Clipping, Norms
from asyncpp.pipeline.compute import Autocast, Compute
from asyncpp.pipeline.part import PartState
from asyncpp.pipeline.partition import indices_by_part, share_out
from asyncpp.pipeline.simulator import Simulator
from asyncpp.pipeline.weights import WeightVersions

if TYPE_CHECKING:
    from asyncpp.config import Config

WeightsOf = Callable[[Sequence[ParameterInfo]], list[Tensor]]


def describe(config: Config) -> str:
    """The run's parameters, parts and groups of parameters, without allocating any of them."""
    infos = parameter_infos(config.model)
    lines = [f"{config.run_name()}: {sum(info.num_elements for info in infos):,} parameters"]
    for part in range(config.profile.num_parts):
        state = build_state(config, part, lambda owned: [torch.empty(info.shape, device="meta") for info in owned])
        layers = config.layers[part]
        size = f"{len(layers)} layers, {state.num_parameters:,} parameters"
        lines.append(f"part {part}: delay {state.profile.delays[part]}, {size}")
        lines.append(state.optimizer.describe())
    return "\n".join(lines)


def prepare_torch(config: Config) -> None:
    """Threads and determinism of this process."""
    torch.set_num_threads(config.trainer.num_threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with this only
    if config.trainer.compile:
        torch.use_deterministic_algorithms(True)  # tells the compiler as well, and imports it: two seconds of every run
    else:
        torch.set_deterministic_debug_mode("error")


def build_simulator(config: Config, last_norms: Norms | None = None) -> Simulator:
    """The training state before the first update. last_norms: as in Simulator."""
    infos = parameter_infos(config.model)
    weights_of = initial_weights_of(config, torch.device(config.trainer.device))
    return Simulator(
        module=build_module(config),
        names=[info.name for info in infos],
        aliases=tied_aliases(config.model),
        states=[build_state(config, part, weights_of) for part in range(config.profile.num_parts)],
        num_micro_batches=config.trainer.num_micro_batches,
        clipping=build_clipping(config),
        compute=build_compute(config),
        last_norms=last_norms,
    )


def build_module(config: Config, layers: range | None = None, *, first: bool = True, last: bool = True) -> Decoder:
    """asyncpp.model.llama.build, compiled if that is configured."""
    module = build(config.model, layers, first=first, last=last)
    if config.trainer.compile:
        from asyncpp.model.compiled import compile_layers  # imports torch's compiler: seconds

        compile_layers(module)
    return module


def initial_weights_of(config: Config, device: torch.device) -> WeightsOf:
    """What gives any of the model's parameters their values before the first update."""
    dtype = getattr(torch, config.trainer.dtype)
    return lambda infos: [weight.to(device, dtype) for weight in initial_weights(config.model, config.seed, infos)]


def build_state(config: Config, part: int, weights_of: WeightsOf, replica: int = 0) -> PartState:
    """The training state of one part of the model. Where it is simulated a tied head has no state of its own.

    replica: which of the pipeline's copies this is, where they share out the updates.
    """
    infos = parameter_infos(config.model)
    aliases = {} if config.pipeline.is_simulated else tied_aliases(config.model)
    indices = indices_by_part(infos, config.layers, aliases)[part]
    owned = [infos[index] for index in indices]
    weights = weights_of(owned)
    profile = config.profile
    owners = None
    if config.pipeline.shard_optimizer:
        owners = share_out([info.num_elements for info in owned], config.pipeline.data_parallel)
    mine = [place for place in range(len(owned)) if owners is None or owners[place] == replica]
    updated = [weights[place] for place in mine]
    return PartState(
        number=part,
        indices=indices,
        profile=profile,
        versions=WeightVersions(weights, profile.delays[part]),
        optimizer=build_optimizer(config.optimizer, [owned[place] for place in mine], updated),
        correction=build_correction(config, updated, profile.delays[part]),
        owners=owners,
        replica=replica,
    )


def build_correction(config: Config, weights: list[Tensor], delay: int) -> Correction:
    """The run's own, for parameters of a part with these weights. delay: the part's largest, in updates."""
    return get_class(config.correction.correction)(config.correction, weights, delay, config.trainer.num_steps)


def build_clipping(config: Config) -> Clipping:
    return CLIPPINGS[config.trainer.clip_by](config.trainer.max_grad_norm)


def build_compute(config: Config) -> Compute:
    """The prepared tokens know which one ends a document."""
    dtype = config.trainer.autocast
    autocast = Autocast(config.trainer.device.partition(":")[0], None if dtype is None else getattr(torch, dtype))
    return Compute(autocast, end_of_document(config.data) if config.data.document_mask else None)


def build_lr_factor(config: Config) -> Callable[[int], float]:
    """What a batch's peak learning rates are multiplied by."""
    return lambda batch: config.lr_schedule.factor(batch, config.trainer.num_steps)
