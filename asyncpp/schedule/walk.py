"""One order in which the lists of all stages can be run, or the deadlock that prevents it.

The lists say what each stage does; the order between stages follows from SEND and RECV. ``walk`` finds one such
order. A single process can run all stages by it, a timeline can compute times along it, and where there is none the
stages would wait for each other for ever.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from asyncpp.schedule.action import BACKWARD, RECV, SEND, UPDATE, Action, Payload, Schedule

Channel = tuple[int, int, Payload | None]  # sender, receiver, what


class Deadlock(Exception):
    """``waiting``: every stage that cannot go on, and the position of the action that it waits at."""

    def __init__(self, waiting: dict[int, int]) -> None:
        super().__init__(f"stages {sorted(waiting)} wait for each other")
        self.waiting = waiting


def channel(stage: int, action: Action) -> Channel:
    """The channel of a SEND or RECV on ``stage``. Messages leave a channel in the order in which they entered."""
    if action.kind is SEND:
        return stage, action.peer, action.payload
    return action.peer, stage, action.payload


def walk(schedule: Schedule, buffer_size: int | None = None, global_norm: bool = False) -> Iterator[tuple[int, int]]:
    """Yield (stage, position in its list) so that every RECV comes after its SEND and no channel overflows.

    buffer_size: messages that a channel holds, instead of the schedule's own number.
    global_norm: an UPDATE also comes after the backwards of its batch on all stages, as clipping by the norm of the
    whole gradient has it (of the chunk: WPipe's groups update apart).
    Raises Deadlock after the last action that can run. Takes time proportional to the number of actions.
    """
    capacity = schedule.buffer_size if buffer_size is None else buffer_size
    positions = [0] * schedule.num_stages
    held: Counter[Channel] = Counter()
    awaited: dict[object, list[int]] = {}  # channel or gradient -> stages to wake
    missing: dict[object, int] = {}  # backwards that a batch's gradient still lacks, all stages together
    ready = deque(range(schedule.num_stages))
    gradient_size = schedule.num_stages * schedule.num_micro_batches

    while ready:
        stage = ready.popleft()
        actions = schedule.stages[stage]
        position = positions[stage]
        while position < len(actions):
            action = actions[position]
            kind = action.kind
            if kind is SEND or kind is RECV:
                key = channel(stage, action)
                if held[key] == (capacity if kind is SEND else 0):
                    awaited.setdefault(key, []).append(stage)
                    break
                held[key] += 1 if kind is SEND else -1
                if key in awaited:
                    ready.extend(awaited.pop(key))
            elif global_norm and kind is BACKWARD:
                key = action.batch, action.chunk
                missing[key] = missing.get(key, gradient_size) - 1
                if missing[key] == 0:
                    ready.extend(awaited.pop(key, ()))
            elif global_norm and kind is UPDATE:
                key = action.batch, action.chunk
                if missing.get(key, gradient_size) > 0:
                    awaited.setdefault(key, []).append(stage)
                    break
            yield stage, position
            position += 1
        positions[stage] = position

    waiting = {stage: position for stage, position in enumerate(positions) if position < len(schedule.stages[stage])}
    if waiting:
        raise Deadlock(waiting)
