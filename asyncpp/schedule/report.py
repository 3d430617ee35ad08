"""What a schedule comes to, in numbers: the document of ``json=true`` and the rows of ``compare``."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from asyncpp.schedule.peaks import peak_gradients, peak_saved_activations, peak_weight_versions
from asyncpp.schedule.staleness import staleness
from asyncpp.schedule.timeline import Timeline


def report(timeline: Timeline) -> dict[str, Any]:
    """Plain numbers and lists.

    Lists are by stage, but ``staleness_updates`` (a list by batch for each), ``steady_staleness_updates``,
    ``peak_weight_versions`` and ``peak_gradients`` are by part of the model, which with one chunk is the stage.
    ``duration`` is in the units of the costs. ``steady_bubble_fraction`` is null in too short a schedule.
    """
    schedule = timeline.schedule
    counted = staleness(schedule)
    return {
        "schedule": schedule.name,
        "num_stages": schedule.num_stages,
        "num_micro_batches": schedule.num_micro_batches,
        "num_batches": schedule.num_batches,
        "num_chunks": schedule.num_chunks,
        "num_actions": schedule.num_actions,
        "duration": timeline.duration,
        "bubble_fraction": timeline.bubble_fraction,
        "bubble_fraction_per_stage": timeline.bubble_fraction_per_stage.tolist(),
        "steady_bubble_fraction": timeline.steady_bubble_fraction,
        "staleness_updates": counted.per_batch.tolist(),
        "steady_staleness_updates": list(counted.steady),
        "num_version_mismatches": counted.num_mismatches,
        "peak_weight_versions": peak_weight_versions(schedule),
        "peak_saved_activations": peak_saved_activations(schedule),
        "peak_gradients": peak_gradients(schedule),
    }


COLUMNS = ("schedule", "bubble", "steady bubble", "versions", "activations", "staleness")


def row(numbers: dict[str, Any]) -> tuple[str, ...]:
    """``report`` as the cells of COLUMNS. Activations are in micro-batches of a whole stage, stages in order."""
    steady = numbers["steady_bubble_fraction"]
    activations = [count / numbers["num_chunks"] for count in numbers["peak_saved_activations"]]
    return (
        numbers["schedule"],
        f"{numbers['bubble_fraction']:.1%}",
        "-" if steady is None else f"{steady:.1%}",
        brief(numbers["peak_weight_versions"]),
        brief(activations),
        brief(numbers["steady_staleness_updates"]),
    )


def brief(numbers: list[float]) -> str:
    """Runs of equal numbers with how often: ``[2, 2, 1]`` is ``2 x2, 1``, and ``[2, 2, 2]``, all equal, just ``2``."""
    runs = [(number, len(list(run))) for number, run in groupby(numbers)]
    if len(runs) == 1:
        return f"{numbers[0]:g}"
    return ", ".join(f"{number:g} x{count}" if count > 1 else f"{number:g}" for number, count in runs)
