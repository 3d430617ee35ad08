"""How much a stage holds at once. A stage runs its list in order, so this follows from the list, whatever it costs."""

from __future__ import annotations

from collections.abc import Sequence

from asyncpp.schedule.action import BACKWARD, FORWARD, UPDATE, Action, Schedule


def last_readers(actions: Sequence[Action]) -> dict[tuple[int, int], int]:
    """(chunk, version) -> position of the last FORWARD or BACKWARD that reads it. After that it may be dropped,
    unless it is the newest."""
    return {
        (action.chunk, action.version): position
        for position, action in enumerate(actions)
        if action.kind is FORWARD or action.kind is BACKWARD
    }


def peak_weight_versions(schedule: Schedule) -> list[int]:
    """The most weight versions that a part of the model has at once, by part in the order of the model.

    The newest version counts, and every older one that a later action still reads. An update whose old version nobody
    reads any more is made in place.
    """
    peaks = [1] * schedule.num_parts
    for stage, actions in enumerate(schedule.stages):
        readers = last_readers(actions)
        newest = [schedule.first_batch] * schedule.num_chunks
        # versions from a checkpoint are there from the start, the others from their update on
        alive = [{v for c, v in readers if c == chunk and v <= newest[chunk]} for chunk in range(schedule.num_chunks)]
        for chunk, versions in enumerate(alive):
            versions.add(newest[chunk])
            peaks[schedule.part(stage, chunk)] = len(versions)
        for position, action in enumerate(actions):
            versions = alive[action.chunk]
            if action.kind is UPDATE:
                if readers.get((action.chunk, newest[action.chunk]), -1) < position:
                    versions.discard(newest[action.chunk])
                newest[action.chunk] = action.version
                versions.add(action.version)
                part = schedule.part(stage, action.chunk)
                peaks[part] = max(peaks[part], len(versions))
            elif action.version != newest[action.chunk] and readers.get((action.chunk, action.version)) == position:
                versions.discard(action.version)
    return peaks


def peak_saved_activations(schedule: Schedule) -> list[int]:
    """The most micro-batches, by stage, that have run forward and not yet backward: what activation memory is made of.

    A micro-batch counts once for each chunk that it is saved in, which is 1 / num_chunks of the stage's layers.
    """
    return [_peak(actions, {FORWARD: 1, BACKWARD: -1}) for actions in schedule.stages]


def peak_gradients(schedule: Schedule) -> list[int]:
    """The most gradient sums that a part has at once, by part in the order of the model.

    A batch's sum lives from its first backward to its update; 2BW sums batch t + 1 while batch t waits for its norm.
    """
    peaks = [0] * schedule.num_parts
    for stage, actions in enumerate(schedule.stages):
        alive: list[set[int]] = [set() for _ in range(schedule.num_chunks)]
        for action in actions:
            sums = alive[action.chunk]
            if action.kind is BACKWARD:
                sums.add(action.batch)
                part = schedule.part(stage, action.chunk)
                peaks[part] = max(peaks[part], len(sums))
            elif action.kind is UPDATE:
                sums.discard(action.batch)
    return peaks


def gradients_in_backward(schedule: Schedule, part: int) -> int:
    """The most sums of gradients that a part has when a backward starts, and the gradient that this one makes."""
    chunk, stage = divmod(part, schedule.num_stages)
    sums: set[int] = set()
    most = 0
    for action in schedule.stages[stage]:
        if action.kind is BACKWARD and action.chunk == chunk:
            most = max(most, len(sums) + 1)
            sums.add(action.batch)
        elif action.kind is UPDATE and action.chunk == chunk:
            sums.discard(action.batch)
    return most


def saved_at_update(actions: Sequence[Action]) -> int:
    """The most micro-batches of a stage's list that have run forward and not yet backward when an update comes."""
    saved = most = 0
    for action in actions:
        saved += (action.kind is FORWARD) - (action.kind is BACKWARD)
        if action.kind is UPDATE:
            most = max(most, saved)
    return most


def _peak(actions: Sequence[Action], change: dict) -> int:
    held = peak = 0
    for action in actions:
        held += change.get(action.kind, 0)
        peak = max(peak, held)
    return peak
