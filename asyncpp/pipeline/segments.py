"""Which schedule a run's batches follow, from which batch on. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from asyncpp.schedule.action import Shape
from asyncpp.schedule.builders import BUILDERS

if TYPE_CHECKING:
    from asyncpp.config import Config


class Segment(NamedTuple):
    """Consecutive batches that run by one schedule: a name of asyncpp.schedule.builders, and how much of it."""

    schedule: str
    shape: Shape


def segments_of(config: Config, first_batch: int = 0) -> list[Segment]:
    """The batches from ``first_batch`` on. Those that a correction wants without delay run by one that flushes."""
    pipeline, trainer = config.pipeline, config.trainer
    chunks = BUILDERS[pipeline.schedule].chunks_of(pipeline.num_chunks)
    delayed = max(config.profile.delays) > 0
    num_sync = config.correction.num_sync_steps(trainer.num_steps) if delayed else 0
    switch = max(first_batch, num_sync)
    cuts = [("one_f_one_b", first_batch, num_sync), (pipeline.schedule, switch, trainer.num_steps)]
    return [
        Segment(
            schedule,
            Shape(
                num_stages=pipeline.num_stages,
                num_micro_batches=trainer.num_micro_batches,
                num_batches=end - start,
                num_chunks=chunks,
                first_batch=start,
            ),
        )
        for schedule, start, end in cuts
        if end > start
    ]
