"""Staleness, counted: how many updates lie between the weights that a gradient was computed on and those it changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncpp.schedule.action import BACKWARD, FORWARD, UPDATE, Schedule, num_batches_until_steady
from asyncpp.schedule.builders import build


@dataclass(frozen=True)
class Staleness:
    """Arrays of int64 (num_parts, num_batches, num_micro_batches), parts in the order of the model, in updates.

    forward, backward: of the version that the pass reads. They differ only where a schedule mixes versions.
    """

    forward: np.ndarray
    backward: np.ndarray

    @property
    def per_batch(self) -> np.ndarray:
        """(num_parts, num_batches): the largest of a batch's micro-batches, forward and backward."""
        return np.maximum(self.forward, self.backward).max(axis=2)

    @property
    def steady(self) -> tuple[int, ...]:
        """The last batch's, by part: what is left when the start is over."""
        return tuple(int(updates) for updates in self.per_batch[:, -1])

    @property
    def num_mismatches(self) -> int:
        """Micro-batches, over all parts, whose backward reads another version than their forward did."""
        return int(np.count_nonzero(self.forward != self.backward))


def staleness(schedule: Schedule) -> Staleness:
    """Count it from the lists: the updates that have been made when the batch's own is applied, less the version read.

    The schedule is a valid one (asyncpp.schedule.validate).
    """
    shape = (schedule.num_parts, schedule.num_batches * schedule.num_micro_batches)
    read = {FORWARD: np.zeros(shape, dtype=np.int64), BACKWARD: np.zeros(shape, dtype=np.int64)}
    applied_to = np.zeros((schedule.num_parts, schedule.num_batches), dtype=np.int64)
    for stage, actions in enumerate(schedule.stages):
        made = [schedule.first_batch] * schedule.num_chunks
        for action in actions:
            part = schedule.part(stage, action.chunk)
            if action.kind in read:
                read[action.kind][part, schedule.item(action)] = action.version
            elif action.kind is UPDATE:
                applied_to[part, action.batch - schedule.first_batch] = made[action.chunk]
                made[action.chunk] += 1
    by_batch = (schedule.num_parts, schedule.num_batches, schedule.num_micro_batches)
    forward, backward = (applied_to[:, :, None] - read[kind].reshape(by_batch) for kind in (FORWARD, BACKWARD))
    return Staleness(forward, backward)


def steady_staleness(
    name: str, num_stages: int, num_micro_batches: int, num_chunks: int | None = None
) -> tuple[int, ...]:
    """The staleness of every part of the model, in its order, after the start: counted from a list of that schedule.

    With one chunk a part is a stage: (0, 0, ...) for synchronous schedules, (1, 1, ...) for two_bw,
    (P - 1, ..., 1, 0) for pipedream. Raises ConfigError for an unknown name or a shape that it cannot have.
    """
    num_batches = num_batches_until_steady(num_stages, num_micro_batches)
    return staleness(build(name, num_stages, num_micro_batches, num_batches, num_chunks)).steady
