"""Which schedule a run's batches follow, from which batch on. No torch here."""

from __future__ import annotations

from typing import NamedTuple

from asyncpp.correction.config import CorrectionConfig
from asyncpp.pipeline.config import PipelineConfig
from asyncpp.schedule.action import Shape
from asyncpp.schedule.builders import BUILDERS


class Segment(NamedTuple):
    """Consecutive batches that run by one schedule: a name of asyncpp.schedule.builders, and how much of it."""

    schedule: str
    shape: Shape


def segments_of(
    pipeline: PipelineConfig, correction: CorrectionConfig, num_micro_batches: int, num_steps: int, first_batch: int = 0
) -> list[Segment]:
    """The batches from ``first_batch`` to ``num_steps``, in real processes.

    Those that ``correction`` wants without delay run by a schedule that flushes.
    """
    chunks = BUILDERS[pipeline.schedule].chunks_of(pipeline.num_chunks)
    delayed = max(pipeline.steady_delays(pipeline.schedule).delays) > 0
    num_sync = correction.num_sync_steps(num_steps) if delayed else 0
    switch = max(first_batch, num_sync)
    cuts = [("one_f_one_b", first_batch, num_sync), (pipeline.schedule, switch, num_steps)]
    return [
        Segment(
            schedule,
            Shape(
                num_stages=pipeline.num_stages,
                num_micro_batches=num_micro_batches,
                num_batches=end - start,
                num_chunks=chunks,
                first_batch=start,
            ),
        )
        for schedule, start, end in cuts
        if end > start
    ]
