"""When every action of a schedule starts and ends if its parts take so and so long, and what follows from that."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from asyncpp.errors import ConfigError, check_not_negative, require
from asyncpp.schedule.action import BACKWARD, FORWARD, RECV, SEND, UPDATE, Schedule, num_filling_batches
from asyncpp.schedule.walk import Channel, channel, walk

PerStage = float | Sequence[float]  # one number for all stages, or one for each


@dataclass(frozen=True)
class CostModel:
    """What actions take, in any one unit of time. A stage's chunks share its costs evenly.

    forward, backward: of a micro-batch on a stage. update: of a stage's weights.
    transfer: how long a message out of a stage keeps the link busy; latency: how long it then still takes. A stage
    computes while its messages travel.
    norm: of the all-reduce that every update waits for, from the last backward of its batch on any stage; None: an
    update waits for its own stage alone. With WPipe it is the norm of one group.
    jitter: each action takes its cost times a uniform number in [1 - jitter, 1 + jitter], drawn from ``seed``.
    """

    forward: PerStage = 1.0
    backward: PerStage = 2.0
    update: PerStage = 0.0
    transfer: PerStage = 0.0
    latency: float = 0.0
    norm: float | None = None
    jitter: float = 0.0
    seed: int = 0

    def of_stages(self, name: str, num_stages: int) -> np.ndarray:
        """The cost called ``name`` as float64 (num_stages). Raises ConfigError for another length or a bad number."""
        value = getattr(self, name)
        accepted = f"expected a number, zero or more, or a list of num_stages={num_stages} of them"
        try:
            costs = np.array(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise ConfigError(name, value, accepted) from None
        require(costs.shape in ((), (num_stages,)), name, value, accepted)
        require(bool(np.all(np.isfinite(costs) & (costs >= 0.0))), name, value, accepted)
        return np.broadcast_to(costs, (num_stages,))

    def check(self, num_stages: int) -> None:
        """Raise ConfigError for a value that means nothing."""
        for name in ("forward", "backward"):
            require(bool(np.all(self.of_stages(name, num_stages) > 0.0)), name, getattr(self, name), "expected > 0")
        for name in ("update", "transfer"):
            self.of_stages(name, num_stages)
        check_not_negative("latency", self.latency)
        require(self.norm is None or 0.0 <= self.norm < np.inf, "norm", self.norm, "expected zero or more, or null")
        require(0.0 <= self.jitter < 1.0, "jitter", self.jitter, "expected a number in [0, 1)")
        check_not_negative("seed", self.seed)


@dataclass(frozen=True)
class Timeline:
    """Times of every action. start, end: one float64 array a stage, aligned with its list; time starts at zero.

    The start of a SEND or RECV is when the stage comes to it, its end when the stage goes on.
    """

    schedule: Schedule
    costs: CostModel
    start: Sequence[np.ndarray]
    end: Sequence[np.ndarray]

    @property
    def duration(self) -> float:
        """Until the last stage is done."""
        return max(float(end[-1]) for end in self.end)

    @property
    def busy(self) -> np.ndarray:
        """float64 (num_stages): time in FORWARD, BACKWARD and UPDATE."""
        return np.array([self._busy_between(stage, 0.0, np.inf) for stage in range(self.schedule.num_stages)])

    @property
    def bubble_fraction_per_stage(self) -> np.ndarray:
        """float64 (num_stages): the share of the whole duration in which a stage does not compute."""
        return (self.duration - self.busy) / self.duration

    @property
    def bubble_fraction(self) -> float:
        """The same over all stages together. (P - 1) / (m + P - 1) for GPipe and 1F1B with equal stages."""
        total = self.schedule.num_stages * self.duration
        return float((total - self.busy.sum()) / total)

    @property
    def steady_bubble_fraction(self) -> float | None:
        """The bubble of all stages in their steady_span; None in too short a schedule.

        0 for 2BW with equal stages; that of any one batch for a schedule that flushes.
        """
        idle = total = 0.0
        for stage in range(self.schedule.num_stages):
            span = self.steady_span(stage)
            if span is None:
                return None
            begin, end = span
            total += end - begin
            idle += end - begin - self._busy_between(stage, begin, end)
        return idle / total

    def steady_span(self, stage: int) -> tuple[float, float] | None:
        """From the start of the first batch that finds the pipeline full to the start of the last batch: the time
        between the first filling and the last draining of the pipeline. None in too short a schedule."""
        batches, num_filling = self.schedule.batches, self._num_filling
        if num_filling >= len(batches) - 1:
            return None
        return self._batch_start(stage, batches[num_filling]), self._batch_start(stage, batches[-1])

    @property
    def steady_batch_duration(self) -> float | None:
        """From one batch to the next, on the mean of the first stage's steady_span; None in too short a schedule."""
        span = self.steady_span(0)
        return None if span is None else (span[1] - span[0]) / (self.schedule.num_batches - 1 - self._num_filling)

    @property
    def _num_filling(self) -> int:
        return num_filling_batches(self.schedule.num_stages, self.schedule.num_micro_batches)

    @cached_property
    def _computes(self) -> list[np.ndarray]:
        """bool, aligned with the lists: FORWARD, BACKWARD and UPDATE."""
        return [
            np.array([a.kind is not SEND and a.kind is not RECV for a in actions]) for actions in self.schedule.stages
        ]

    def _batch_start(self, stage: int, batch: int) -> float:
        actions = self.schedule.stages[stage]
        return float(
            self.start[stage][next(i for i, a in enumerate(actions) if a.kind is FORWARD and a.batch == batch)]
        )

    def _busy_between(self, stage: int, begin: float, end: float) -> float:
        """Time that ``stage`` computes in actions that start within [begin, end)."""
        start = self.start[stage]
        chosen = self._computes[stage] & (start >= begin) & (start < end)
        return float((self.end[stage][chosen] - start[chosen]).sum())


def timeline(schedule: Schedule, costs: CostModel | None = None) -> Timeline:
    """Run the lists against a clock. The schedule is a valid one; takes time proportional to its actions.

    Raises ConfigError for costs that mean nothing.
    """
    costs = costs or CostModel()
    costs.check(schedule.num_stages)
    durations = _durations(schedule, costs)
    transfer = costs.of_stages("transfer", schedule.num_stages).tolist()
    latency, norm = costs.latency, costs.norm
    start = [[0.0] * len(actions) for actions in schedule.stages]
    end = [[0.0] * len(actions) for actions in schedule.stages]
    clock = [0.0] * schedule.num_stages
    links: dict[Channel, _Link] = {}
    gradient_ready: dict[tuple[int, int], float] = {}  # (batch, chunk) -> the end of the last backward so far

    for stage, position in walk(schedule, global_norm=norm is not None):
        action = schedule.stages[stage][position]
        kind, now = action.kind, clock[stage]
        done = now
        if kind is SEND or kind is RECV:
            key = channel(stage, action)
            if key not in links:
                links[key] = _Link(schedule.buffer_size)
            link = links[key]
            done = link.send(now, transfer[stage], latency) if kind is SEND else link.receive(now)
        else:
            if norm is not None and kind is UPDATE:
                now = max(now, gradient_ready[action.batch, action.chunk] + norm)
            done = now + durations[stage][position]
            if norm is not None and kind is BACKWARD:
                gradient = action.batch, action.chunk
                gradient_ready[gradient] = max(done, gradient_ready.get(gradient, 0.0))
        start[stage][position] = now
        end[stage][position] = clock[stage] = done

    return Timeline(schedule, costs, [np.array(times) for times in start], [np.array(times) for times in end])


class _Link:
    """A channel in time: one message after the other, and no more than ``capacity`` that are not yet received."""

    def __init__(self, capacity: int) -> None:
        self._free = 0.0
        self._arrivals: deque[float] = deque()
        self._places: deque[float] = deque([0.0] * capacity)  # when each place in the buffer is free

    def send(self, now: float, transfer: float, latency: float) -> float:
        """When the sender goes on: at once, if there is a place."""
        begin = max(now, self._places.popleft())
        self._free = max(begin, self._free) + transfer
        self._arrivals.append(self._free + latency)
        return begin

    def receive(self, now: float) -> float:
        """When the receiver has the message."""
        done = max(now, self._arrivals.popleft())
        self._places.append(done)
        return done


def _durations(schedule: Schedule, costs: CostModel) -> list[list[float]]:
    """What every action takes on its stage, jitter included; zero for SEND and RECV."""
    generator = np.random.default_rng(costs.seed)
    by_kind = {
        kind: costs.of_stages(name, schedule.num_stages) / schedule.num_chunks
        for kind, name in ((FORWARD, "forward"), (BACKWARD, "backward"), (UPDATE, "update"))
    }
    durations = []
    for stage, actions in enumerate(schedule.stages):
        of_kind = {kind: float(by_stage[stage]) for kind, by_stage in by_kind.items()}
        nominal = np.array([of_kind.get(action.kind, 0.0) for action in actions])
        if costs.jitter:
            nominal *= generator.uniform(1.0 - costs.jitter, 1.0 + costs.jitter, len(nominal))
        durations.append(nominal.tolist())
    return durations
