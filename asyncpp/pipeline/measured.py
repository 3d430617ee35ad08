"""The recorded times of a pipeline (trace.py) as a timeline like a planned one, and what they say. No torch here.

A schedule that starts with the first recorded batch has, on every stage, the recorded actions in their order: those
that a stage does at the same time for an earlier batch are between them in the run, and left out here. So the start of
a window of a pipeline that never flushes looks emptier than it was; its steady state (Timeline.steady_span) does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncpp.schedule.action import BACKWARD, FORWARD, RECV, SEND, UPDATE, Kind, Shape
from asyncpp.schedule.builders import build
from asyncpp.schedule.timeline import CostModel, Timeline, timeline

_MILLISECONDS = 1000.0
_ACTION_FIELDS = ["kind", "batch", "micro_batch", "chunk", "version"]


@dataclass(frozen=True)
class TimeFractions:
    """Of a rank's time in the steady state; together 1.

    compute: forwards and backwards. wait_receive: in RECV. wait_norm: before an update, until its decision is there.
    other: between actions, such as records and validations.
    """

    compute: float
    update: float
    wait_receive: float
    wait_norm: float
    send: float
    other: float


def measured_timeline(name: str, shape: Shape, records: Sequence[np.ndarray]) -> Timeline:
    """Milliseconds from the first recorded action on, as actions of the schedule called ``name``.

    shape: of what the run did by that schedule. records: asyncpp.pipeline.trace.RECORD, by stage; what is before the
    first batch of ``shape``, or of a batch that a stage has no record of, is left out.
    The costs are the mean of what every stage took. Raises ValueError for records that are not of the schedule.
    """
    if not all(len(own) for own in records):
        raise ValueError("a rank recorded nothing")
    first = max(shape.first_batch, *(int(own["batch"].min()) for own in records))
    num_batches = shape.first_batch + shape.num_batches - first
    schedule = build(name, shape.num_stages, shape.num_micro_batches, num_batches, shape.num_chunks, first)
    kept = [own[own["batch"] >= first] for own in records]
    for stage, (own, actions) in enumerate(zip(kept, schedule.stages, strict=True)):
        recorded = own[_ACTION_FIELDS].tolist()
        if recorded != [(action.kind.value, *action[1:5]) for action in actions]:
            raise ValueError(f"stage {stage} recorded other actions than {name} has in batches {first} and after")
    begin_s = min(own["start_s"].min() for own in kept)
    start, end = ([(own[field] - begin_s) * _MILLISECONDS for own in kept] for field in ("start_s", "end_s"))
    return Timeline(schedule, mean_costs(kept, shape.num_chunks), start, end)


def mean_costs(records: Sequence[np.ndarray], num_chunks: int) -> CostModel:
    """Milliseconds of a forward, a backward and an update of a whole stage; messages take no time."""

    def mean(kind: Kind) -> list[float]:
        chosen = [own[own["kind"] == kind.value] for own in records]
        return [float((own["end_s"] - own["start_s"]).mean()) * num_chunks * _MILLISECONDS for own in chosen]

    return CostModel(forward=mean(FORWARD), backward=mean(BACKWARD), update=mean(UPDATE))


def planned_timeline(measured: Timeline) -> Timeline:
    """What the same schedule would take if every action took its stage's mean and nothing waited but for its data."""
    return timeline(measured.schedule, measured.costs)


def time_fractions(measured: Timeline, stage: int) -> TimeFractions | None:
    """Where the time of a stage's rank went; None in too short a schedule."""
    span = measured.steady_span(stage)
    if span is None:
        return None
    begin, end = span
    kinds = np.array([action.kind.value for action in measured.schedule.stages[stage]])
    starts, ends = measured.start[stage], measured.end[stage]
    inside = (starts >= begin) & (starts < end)
    durations = ends - starts
    gaps = starts - np.concatenate(([starts[0]], ends[:-1]))

    def fraction(of: np.ndarray, *chosen: Kind) -> float:
        return float(of[inside & np.isin(kinds, [kind.value for kind in chosen])].sum() / (end - begin))

    compute, update = fraction(durations, FORWARD, BACKWARD), fraction(durations, UPDATE)
    receive, norm, send = fraction(durations, RECV), fraction(gaps, UPDATE), fraction(durations, SEND)
    return TimeFractions(compute, update, receive, norm, send, 1.0 - compute - update - receive - norm - send)
