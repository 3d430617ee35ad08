"""Which stage holds what: the model cut by estimated costs, and every stage's memory and time."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from asyncpp.errors import ConfigError
from asyncpp.pipeline.partition import share_out
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.memory import (
    Held,
    Memory,
    averaging_bytes,
    constant_bytes,
    held_parameters,
    outputs_bytes,
    pass_bytes,
    unit_memory,
    update_bytes,
)
from asyncpp.planner.units import Unit, units
from asyncpp.schedule.action import num_batches_until_steady
from asyncpp.schedule.peaks import (
    gradients_in_backward,
    peak_gradients,
    peak_saved_activations,
    peak_weight_versions,
    saved_at_update,
)
from asyncpp.schedule.split import split_layers


@dataclass(frozen=True)
class Part:
    """Consecutive units, and what is held of them."""

    units: tuple[Unit, ...]
    held: Held


@dataclass(frozen=True)
class Stage:
    """One rank's share of the model: a part, or several where a schedule has chunks. The simulator has them all."""

    parts: tuple[Part, ...]
    memory: Memory

    @property
    def units(self) -> list[Unit]:
        return [unit for part in self.parts for unit in part.units]

    @property
    def num_parameters(self) -> int:
        return sum(unit.num_elements for unit in self.units)

    @property
    def forward_s(self) -> float:
        """Of a micro-batch."""
        return sum(unit.forward_s for unit in self.units)

    @property
    def backward_s(self) -> float:
        """Of a micro-batch."""
        return sum(unit.backward_s for unit in self.units)


def cut(config: PlanConfig) -> list[Stage]:
    """The stages of one pipeline, first to last; a single one where it is simulated.

    The cut is the one that a run makes (asyncpp.pipeline.partition). Where that does not fit, and the user has not
    given it, it is the fastest that does; where none does, or a stage's chunks share its memory, the run's own again.
    """
    pieces, held = units(config), held_by_part(config)
    pipeline = config.pipeline
    num_stages = 1 if pipeline.is_simulated else pipeline.num_stages
    layers = pipeline.layers("pipeline", config.model, config.data.sequence_length, len(held))
    sizes = [len(owned) for owned in layers]
    sizes[0] += 1
    sizes[-1] += 1
    default = _stages(config, pieces, held, sizes, num_stages)
    if _fits(config, default) or pipeline.split is not None or len(held) != num_stages:
        return default
    for sizes in _splits_that_may_fit(config, pieces, held):
        stages = _stages(config, pieces, held, sizes, num_stages)
        if _fits(config, stages):
            return stages
    return default


def _fits(config: PlanConfig, stages: Sequence[Stage]) -> bool:
    return all(stage.memory.total <= config.hardware.usable_bytes for stage in stages)


def held_by_part(config: PlanConfig) -> list[Held]:
    """By part of the model, in its order.

    The simulator keeps as many old versions of a part as its delay is long, one sum of gradients, and what one
    micro-batch saves.
    """
    if config.pipeline.is_simulated:
        in_backward = min(3, config.trainer.num_micro_batches)  # it drops a micro-batch's when it has the next one's
        return [Held(delay + 1, 1, in_backward, 1.0, 0.0) for delay in config.delay.profile(config.pipeline).delays]
    schedule = config.schedule(num_batches_until_steady(config.pipeline.num_stages, config.trainer.num_micro_batches))
    versions, sums = peak_weight_versions(schedule), peak_gradients(schedule)
    in_backward = [gradients_in_backward(schedule, part) for part in range(schedule.num_parts)]
    saved = [count / schedule.num_chunks for count in peak_saved_activations(schedule)]
    at_update = [count / schedule.num_chunks for count in map(saved_at_update, schedule.stages)]
    stage_of = [part % schedule.num_stages for part in range(schedule.num_parts)]
    return [
        Held(versions[part], sums[part], in_backward[part], saved[s], at_update[s]) for part, s in enumerate(stage_of)
    ]


def _splits_that_may_fit(config: PlanConfig, pieces: Sequence[Unit], held: Sequence[Held]) -> Iterator[Sequence[int]]:
    """The fastest splits under ever larger allowances for what does not add up unit by unit."""
    num_stages = len(held)
    memory = [[_added_bytes(config, unit, holds, num_stages == 1) for unit in pieces] for holds in held]
    passes, updates = pass_bytes(config, pieces, more_gradients=1), update_bytes(config, pieces)
    for allowance in (0.0, passes, max(passes, updates)):
        limit = config.hardware.usable_bytes - allowance
        limits = [limit - _constant_bytes(config, stage, num_stages) for stage in range(num_stages)]
        try:
            yield split_layers(_costs(pieces), num_stages, memory, limits)
        except ConfigError:  # even more does not fit
            return


def _costs(pieces: Sequence[Unit]) -> list[float]:
    return [unit.forward_s + unit.backward_s for unit in pieces]


def _added_bytes(config: PlanConfig, unit: Unit, held: Held, with_embedding: bool) -> float:
    """At least, where the replicas share out the updates: the largest share is no smaller than an even one."""
    memory = unit_memory(config, unit, held, with_embedding)
    pipeline = config.pipeline
    even_share = 1.0 / pipeline.data_parallel if pipeline.shard_optimizer else 1.0
    averaging = averaging_bytes(config, [unit], with_embedding) if held.overlaps_batches else 0.0
    return memory.total + averaging - (1.0 - even_share) * (memory.optimizer_state + memory.correction_state)


def _stages(
    config: PlanConfig, pieces: Sequence[Unit], held: Sequence[Held], sizes: Sequence[int], num_stages: int
) -> list[Stage]:
    """Parts of ``sizes`` units, dealt out to the stages in turns."""
    ends = itertools.accumulate(sizes)
    parts = [Part(tuple(pieces[end - size : end]), holds) for size, end, holds in zip(sizes, ends, held, strict=True)]
    return [_stage(config, stage, num_stages, parts[stage::num_stages]) for stage in range(num_stages)]


def _stage(config: PlanConfig, stage: int, num_stages: int, parts: Sequence[Part]) -> Stage:
    owned = [unit for part in parts for unit in part.units]
    with_embedding = any(unit.name == "embedding" for unit in owned)
    memories = [
        _memory(config, stage, num_stages, parts, with_embedding, updated)
        for updated in _updated_by_replica(config, parts, with_embedding)
    ]
    return Stage(tuple(parts), max(memories, key=lambda memory: memory.total))


def _updated_by_replica(
    config: PlanConfig, parts: Sequence[Part], with_embedding: bool
) -> Sequence[Container[str] | None]:
    """Names of what each replica updates of a stage, or one None where each updates all (trainer/setup.py)."""
    pipeline = config.pipeline
    if not pipeline.shard_optimizer:
        return [None]
    updated: list[set[str]] = [set() for _ in range(pipeline.data_parallel)]
    for part in parts:
        infos = [info for unit in part.units for info in held_parameters(unit, with_embedding)]
        owners = share_out([info.num_elements for info in infos], pipeline.data_parallel)
        for info, owner in zip(infos, owners, strict=True):
            updated[owner].add(info.name)
    return updated


def _memory(
    config: PlanConfig,
    stage: int,
    num_stages: int,
    parts: Sequence[Part],
    with_embedding: bool,
    updated: Container[str] | None,
) -> Memory:
    """Of one replica of a stage, the one that updates ``updated``."""
    owned = [unit for part in parts for unit in part.units]
    memory = Memory()
    fewer_saved = 0.0  # at an update than at most
    for part in parts:
        for unit in part.units:
            memory += unit_memory(config, unit, part.held, with_embedding, updated)
            fewer_saved += (part.held.micro_batches - part.held.micro_batches_at_update) * unit.saved_bytes
        if stage < num_stages - 1 or part is not parts[-1]:
            memory += Memory(saved_activations=outputs_bytes(config, part.held.micro_batches))
    differentiated = [owned] if config.pipeline.is_simulated else [part.units for part in parts]
    more_gradients = max(part.held.gradients_in_backward - part.held.gradient_sums for part in parts)
    passes = max(pass_bytes(config, together, more_gradients) for together in differentiated)
    averaging = averaging_bytes(config, owned, with_embedding)
    if any(part.held.overlaps_batches for part in parts):
        passes += averaging
    updates = max(averaging, update_bytes(config, owned, updated)) - fewer_saved
    buffers = Memory(buffers=max(passes, updates) + _constant_bytes(config, stage, num_stages))
    return memory + buffers


def _constant_bytes(config: PlanConfig, stage: int, num_stages: int) -> float:
    num_neighbours = (stage > 0) + (stage < num_stages - 1)
    wraps_around = config.one_batch.num_chunks > 1 and num_neighbours > 0 and stage in (0, num_stages - 1)
    return constant_bytes(config, num_neighbours, wraps_around)
