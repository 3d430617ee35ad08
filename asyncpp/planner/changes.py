"""What would make a run fit: each kind of change tried by planning it, as far as it has to go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from asyncpp.correction.config import CorrectionConfig
from asyncpp.errors import ConfigError
from asyncpp.planner.config import PlanConfig
from asyncpp.planner.stages import cut

Series = Iterator[tuple[str, PlanConfig]]  # overrides, and what they make of the plan, ever further


@dataclass(frozen=True)
class Change:
    """overrides: what to add to the command line. max_memory_bytes: of the fullest stage then. config: then, too."""

    overrides: str
    max_memory_bytes: float
    fits: bool
    config: PlanConfig


def changes(config: PlanConfig) -> list[Change]:
    """The changes that are enough by themselves; if none is, those that help, and before them a combination."""
    helpful = _single_changes(config)
    enough = [change for change in helpful if change.fits]
    if enough:
        return enough
    combined = _combination(config)
    return [combined, *helpful] if combined is not None else helpful


def max_memory_bytes(config: PlanConfig) -> float:
    """Of the fullest stage."""
    return max(stage.memory.total for stage in cut(config))


def _single_changes(config: PlanConfig) -> list[Change]:
    """Of each kind the first that fits, or the furthest that there is; those that save nothing are left out."""
    needed = max_memory_bytes(config)
    series = [_smaller_micro_batches(config), _recompute(config), _shard_optimizer(config), _no_correction(config)]
    if not config.pipeline.is_simulated:
        series += [_more_stages(config), _fewer_versions(config)]
    found = [_furthest(one) for one in series]
    helpful = [change for change in found if change is not None and change.max_memory_bytes < needed]
    return sorted(helpful, key=lambda change: change.max_memory_bytes)


def _combination(config: PlanConfig) -> Change | None:
    """The change that helps most, then what helps most beside it, until the run fits; None where it never does."""
    overrides: list[str] = []
    while helpful := _single_changes(config):
        best = helpful[0]
        overrides.append(best.overrides)
        if best.fits:
            return replace(best, overrides=" ".join(overrides))
        config = best.config
    return None


def _furthest(series: Series) -> Change | None:
    """The first of a series that fits, or the last that can be."""
    furthest = None
    for overrides, changed in series:
        try:
            changed.check()
        except ConfigError:
            break
        needed = max_memory_bytes(changed)
        furthest = Change(overrides, needed, needed <= changed.hardware.usable_bytes, changed)
        if furthest.fits:
            break
    return furthest


def _more_stages(config: PlanConfig) -> Series:
    num_stages = config.pipeline.num_stages
    while num_stages < config.model.num_layers:
        num_stages = min(2 * num_stages, config.model.num_layers)
        pipeline = replace(config.pipeline, num_stages=num_stages)
        yield f"pipeline.num_stages={num_stages}", replace(config, pipeline=pipeline)


def _smaller_micro_batches(config: PlanConfig) -> Series:
    for factor in range(2, config.micro_batch_sequences + 1):
        if config.micro_batch_sequences % factor == 0:
            trainer = replace(config.trainer, num_micro_batches=factor * config.trainer.num_micro_batches)
            yield f"trainer.num_micro_batches={trainer.num_micro_batches}", replace(config, trainer=trainer)


def _recompute(config: PlanConfig) -> Series:
    if not config.pipeline.recompute:
        yield "pipeline.recompute=true", replace(config, pipeline=replace(config.pipeline, recompute=True))


def _shard_optimizer(config: PlanConfig) -> Series:
    pipeline = config.pipeline
    if not pipeline.shard_optimizer and pipeline.data_parallel > 1:
        yield "pipeline.shard_optimizer=true", replace(config, pipeline=replace(pipeline, shard_optimizer=True))


def _no_correction(config: PlanConfig) -> Series:
    yield "correction=none", replace(config, correction=CorrectionConfig("none"))


def _fewer_versions(config: PlanConfig) -> Series:
    name = "one_f_one_b"
    pipeline = replace(config.pipeline, name=name, schedule=name, num_chunks=None)
    yield f"pipeline={name}", replace(config, pipeline=pipeline)
