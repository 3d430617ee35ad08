"""The piece of a schedule around one of its actions, as a stage x time grid of plain text for error messages."""

from __future__ import annotations

from collections import deque

from asyncpp.schedule.action import RECV, SEND, Schedule
from asyncpp.schedule.walk import Deadlock, channel, walk

_COLUMNS_BEFORE, _COLUMNS_AFTER, _ROWS_AROUND = 5, 3, 4


def fault_grid(schedule: Schedule, stage: int, position: int) -> str:
    """Rows are stages, columns slots of equal length for FORWARD, BACKWARD and UPDATE.

    The action at ``position`` is in brackets, or the one that a SEND or RECV there belongs to. ``~`` marks actions
    that are never reached because a stage waits for ever before them.
    """
    slots, reached = _slots(schedule)
    marked = _drawn_near(schedule, stage, position)
    middle = slots[stage].get(marked, 0)
    columns = range(max(0, middle - _COLUMNS_BEFORE), middle + _COLUMNS_AFTER + 1)
    rows = range(max(0, stage - _ROWS_AROUND), min(len(schedule.stages), stage + _ROWS_AROUND + 1))
    cells: dict[tuple[int, int], str] = {}
    for row in rows:
        for at, slot in slots[row].items():
            if slot in columns:
                text = str(schedule.stages[row][at]) + ("" if at < reached[row] else "~")
                cells[row, slot] = f"[{text}]" if (row, at) == (stage, marked) else text
    width = max(map(len, cells.values()), default=1) + 1
    lines = ["slot".ljust(9) + "".join(str(slot).ljust(width) for slot in columns)]
    lines += [f"stage {row}".ljust(9) + "".join(cells.get((row, s), ".").ljust(width) for s in columns) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _slots(schedule: Schedule) -> tuple[list[dict[int, int]], list[int]]:
    """Each stage's positions of compute actions -> slot, and how far each stage gets before it waits for ever."""
    slots: list[dict[int, int]] = [{} for _ in schedule.stages]
    clock = [0] * len(schedule.stages)
    reached = [0] * len(schedule.stages)
    sent: dict[object, deque[int]] = {}
    try:
        for stage, position in walk(schedule):
            action = schedule.stages[stage][position]
            reached[stage] = position + 1
            if action.kind is SEND:
                sent.setdefault(channel(stage, action), deque()).append(clock[stage])
            elif action.kind is RECV:
                clock[stage] = max(clock[stage], sent[channel(stage, action)].popleft())
            else:
                slots[stage][position] = clock[stage]
                clock[stage] += 1
    except Deadlock:
        pass  # what is not reached follows in the order of its list
    for stage, actions in enumerate(schedule.stages):
        for position in range(reached[stage], len(actions)):
            if actions[position].kind not in (SEND, RECV):
                slots[stage][position] = clock[stage]
                clock[stage] += 1
    return slots, reached


def _drawn_near(schedule: Schedule, stage: int, position: int) -> int:
    """The compute action at ``position``, or the one that a RECV there comes before or a SEND there comes after."""
    actions = schedule.stages[stage]
    drawn = [at for at, action in enumerate(actions) if action.kind not in (SEND, RECV)]
    if not drawn:
        return 0
    if position < len(actions) and actions[position].kind is RECV:
        return next((at for at in drawn if at > position), drawn[-1])
    return max((at for at in drawn if at <= position), default=drawn[0])
