"""Is a schedule right? What each stage does by itself, what stages do to each other, and how much they hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import NoReturn

from asyncpp.schedule.action import (
    ACTIVATION,
    BACKWARD,
    FORWARD,
    GRADIENT,
    RECV,
    SEND,
    UPDATE,
    Action,
    Kind,
    Payload,
    Schedule,
)
from asyncpp.schedule.builders import BUILDERS, stage_actions
from asyncpp.schedule.grid import fault_grid
from asyncpp.schedule.peaks import peak_saved_activations, peak_weight_versions
from asyncpp.schedule.walk import Channel, Deadlock, channel, walk


class ScheduleError(ValueError):
    """A schedule that cannot be run, or is not the one that its name promises.

    stage, position: of the action at fault; the message ends in a stage x time grid around it.
    """

    def __init__(self, message: str, stage: int, position: int) -> None:
        super().__init__(message)
        self.stage = stage
        self.position = position


def validate(
    schedule: Schedule,
    *,
    buffer_size: int | None = None,
    global_norm: bool = False,
    max_weight_versions: int | None = None,
    max_saved_activations: int | None = None,
) -> None:
    """Raise ScheduleError unless

    - every micro-batch runs forward and then backward through every part once, in order, on versions that exist;
    - every update follows all backwards of its batch and makes the next version;
    - every RECV meets its SEND, in order, and no stage waits for ever with ``buffer_size`` messages in a channel
      (the schedule's own number by default), nor for the norm of the whole gradient under ``global_norm``;
    - no part holds more than ``max_weight_versions``, no stage more than ``max_saved_activations``;
    - under a builder's name, the list is the builder's, action by action: so there every change is refused.
    """
    if len(schedule.stages) != schedule.num_stages:
        _refuse(schedule, 0, 0, f"num_stages is {schedule.num_stages} but there are {len(schedule.stages)} lists")
    for stage in range(schedule.num_stages):
        _check_stage(schedule, stage)
    _check_channels(schedule, buffer_size, global_norm)
    if max_saved_activations is not None:
        counts = peak_saved_activations(schedule)
        _check_limit(schedule, counts, max_saved_activations, "saved activations", "max_saved_activations")
    if max_weight_versions is not None:
        counts = peak_weight_versions(schedule)
        _check_limit(schedule, counts, max_weight_versions, "weight versions", "max_weight_versions")
    if schedule.name in BUILDERS:
        _check_name(schedule)


class _Stream:
    """One kind of action on one chunk: the micro-batches must come one by one, each after what it needs."""

    __slots__ = ("done", "needs", "peer", "what")

    def __init__(self, what: str, peer: int, needs: Sequence[_Stream] = ()) -> None:
        self.what = what
        self.peer = peer
        self.needs = needs
        self.done = 0


_Streams = dict[tuple[Kind, Payload | None, int], _Stream]


def _streams(schedule: Schedule, stage: int) -> _Streams:
    """The kinds of action that a stage has, by (kind, payload, chunk)."""
    P, last_part = schedule.num_stages, schedule.num_parts - 1
    before, after = (stage - 1) % P, (stage + 1) % P
    streams: _Streams = {}
    for chunk in range(schedule.num_chunks):
        has_input = schedule.part(stage, chunk) > 0
        needs: list[_Stream] = []
        if has_input and P > 1:
            streams[RECV, ACTIVATION, chunk] = _Stream("activation", before)
            needs = [streams[RECV, ACTIVATION, chunk]]
        elif has_input:
            needs = [streams[FORWARD, None, chunk - 1]]
        streams[FORWARD, None, chunk] = _Stream("forward", -1, needs)
        if schedule.part(stage, chunk) < last_part and P > 1:
            streams[SEND, ACTIVATION, chunk] = _Stream("forward's send", after, [streams[FORWARD, None, chunk]])
    for chunk in reversed(range(schedule.num_chunks)):
        has_output = schedule.part(stage, chunk) < last_part
        needs = [streams[FORWARD, None, chunk]]
        if has_output and P > 1:
            streams[RECV, GRADIENT, chunk] = _Stream("gradient", after)
            needs.append(streams[RECV, GRADIENT, chunk])
        elif has_output:
            needs.append(streams[BACKWARD, None, chunk + 1])
        streams[BACKWARD, None, chunk] = _Stream("backward", -1, needs)
        if schedule.part(stage, chunk) > 0 and P > 1:
            streams[SEND, GRADIENT, chunk] = _Stream("backward's send", before, [streams[BACKWARD, None, chunk]])
    return streams


def _check_stage(schedule: Schedule, stage: int) -> None:
    """What can be seen in one list."""
    refuse: Callable[[int, str], NoReturn] = partial(_refuse, schedule, stage)
    streams = _streams(schedule, stage)
    m, batches = schedule.num_micro_batches, schedule.batches
    newest = [schedule.first_batch] * schedule.num_chunks
    read: list[list[int]] = [[] for _ in newest]  # by chunk, the version of every forward in order

    for position, action in enumerate(schedule.stages[stage]):
        kind, batch, micro_batch, chunk, version, payload, peer = action
        if batch not in batches or not 0 <= chunk < schedule.num_chunks:
            refuse(
                position, f"there are batches {batches.start} to {batches.stop - 1} and {schedule.num_chunks} chunks"
            )
        if kind is UPDATE:
            _check_update(
                schedule, action, streams[BACKWARD, None, chunk].done, newest[chunk], partial(refuse, position)
            )
            newest[chunk] += 1
            continue
        stream = streams.get((kind, payload, chunk))
        if stream is None or not 0 <= micro_batch < m:
            refuse(position, "this stage has no such action")
        item = (batch - batches.start) * m + micro_batch
        if item != stream.done:
            refuse(position, f"comes twice or out of order; due is {_named(schedule, stream.done)}")
        for needed in stream.needs:
            if needed.done <= item:
                refuse(position, f"its {needed.what} is not there yet")
        if peer != stream.peer:
            refuse(position, f"the other end is stage {stream.peer}")
        if kind is FORWARD or kind is BACKWARD:
            if not 0 <= version <= newest[chunk]:
                refuse(position, f"reads weight version {version}, but version {newest[chunk]} is the newest there")
            if kind is FORWARD:
                read[chunk].append(version)
            elif version != read[chunk][item] and not schedule.mixed_versions:
                refuse(position, f"its forward ran on weight version {read[chunk][item]}")
        stream.done += 1

    end = len(schedule.stages[stage])
    for (kind, payload, chunk), stream in streams.items():
        if stream.done < m * len(batches):
            missing = f"{kind.name}{f' of the {payload.name.lower()}' if payload else ''}"
            where = f" in chunk {chunk}" if schedule.num_chunks > 1 else ""
            refuse(end, f"{missing} of {_named(schedule, stream.done)}{where} is missing")
    for chunk, version in enumerate(newest):
        if version < batches.stop:
            refuse(end, f"UPDATE of batch {version} in chunk {chunk} is missing")


def _check_update(
    schedule: Schedule, action: Action, backwards: int, newest: int, refuse: Callable[[str], NoReturn]
) -> None:
    """backwards: that the chunk has run so far; newest: its version."""
    if action.batch != newest or action.version != newest + 1:
        refuse(f"the newest weight version is {newest}: due is the update of batch {newest}, which makes {newest + 1}")
    if backwards < (action.batch - schedule.first_batch + 1) * schedule.num_micro_batches:
        refuse(f"the backward of {_named(schedule, backwards)} has not run")


def _check_channels(schedule: Schedule, buffer_size: int | None, global_norm: bool) -> None:
    """What stages do to each other. Every list is right by itself."""
    held: dict[Channel, deque[tuple[int, int, int]]] = {}
    try:
        for stage, position in walk(schedule, buffer_size, global_norm):
            action = schedule.stages[stage][position]
            if action.kind is SEND:
                step = 1 if action.payload is ACTIVATION else -1
                message = action.batch, action.micro_batch, schedule.part(stage, action.chunk) + step
                held.setdefault(channel(stage, action), deque()).append(message)
            elif action.kind is RECV:
                batch, micro_batch, part = held[channel(stage, action)].popleft()
                if (batch, micro_batch, part) != (action.batch, action.micro_batch, schedule.part(stage, action.chunk)):
                    came = f"batch {batch}, micro-batch {micro_batch}, for chunk {part // schedule.num_stages}"
                    _refuse(schedule, stage, position, f"what comes out of the channel is {came}")
    except Deadlock as deadlock:
        waiting = [f"stage {s} at {schedule.stages[s][at]}" for s, at in deadlock.waiting.items()]
        stage, position = next(iter(deadlock.waiting.items()))
        _refuse(schedule, stage, position, f"deadlock: {', '.join(waiting)} wait for each other")


def _check_limit(schedule: Schedule, counts: Sequence[int], limit: int, what: str, name: str) -> None:
    """counts: by stage, or by part in the order of the model, which goes round the stages."""
    for index, count in enumerate(counts):
        if count > limit:
            _refuse(schedule, index % schedule.num_stages, 0, f"holds {count} {what}, more than {name}={limit}")


def _check_name(schedule: Schedule) -> None:
    for stage, actions in enumerate(schedule.stages):
        due: Iterator[Action] = stage_actions(schedule.name, schedule, stage)
        for position, (action, expected) in enumerate(zip_longest(actions, due)):
            if action != expected:
                _refuse(schedule, stage, position, f"{schedule.name} has {expected} here; another list, another name")


def _named(schedule: Schedule, item: int) -> str:
    batch, micro_batch = divmod(item, schedule.num_micro_batches)
    return f"batch {schedule.first_batch + batch}, micro-batch {micro_batch}"


def _refuse(schedule: Schedule, stage: int, position: int, message: str) -> NoReturn:
    """Raise ScheduleError: where, what, what the schedule asks of its shape if that is not met, and the grid."""
    actions = schedule.stages[stage] if stage < len(schedule.stages) else ()
    action = actions[position] if position < len(actions) else "its end"
    lines = [f"schedule {schedule.name}, stage {stage}, action {position} ({action}): {message}"]
    unmet = BUILDERS[schedule.name].unmet(schedule) if schedule.name in BUILDERS else None
    if unmet:
        lines.append(str(unmet))
    if actions and len(schedule.stages) == schedule.num_stages:
        lines.append(fault_grid(schedule, stage, position))
    raise ScheduleError("\n".join(lines), stage, position)
