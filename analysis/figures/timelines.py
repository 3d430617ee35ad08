"""What each stage of a pipeline does when: the schedules that the paper compares, as asyncpp.schedule draws them."""

from __future__ import annotations

from matplotlib.figure import Figure

from asyncpp.schedule.builders import build
from asyncpp.schedule.draw import figure_of
from asyncpp.schedule.report import brief, report
from asyncpp.schedule.timeline import Timeline, timeline
from figures.style import WIDTH_IN

SCHEDULES = {"gpipe": "GPipe", "one_f_one_b": "1F1B", "two_bw": "PipeDream-2BW", "pipedream": "PipeDream"}
NUM_STAGES = NUM_MICRO_BATCHES = 4
NUM_BATCHES = 2  # for PipeDream, which updates after every micro-batch, NUM_MICRO_BATCHES times as many


def draw_timelines() -> Figure:
    """A panel a schedule. Forward takes one unit of time, backward two, update and messages none."""
    timelines = [_timeline(name) for name in SCHEDULES]
    titles = [_title(*pair) for pair in zip(SCHEDULES.values(), timelines, strict=True)]
    return figure_of(timelines, titles, unit="forward passes of a micro-batch on a stage", width_in=WIDTH_IN[3])


def _timeline(name: str) -> Timeline:
    return timeline(build(name, NUM_STAGES, NUM_MICRO_BATCHES, NUM_BATCHES))


def _title(name: str, drawn: Timeline) -> str:
    numbers = report(drawn)
    versions, delay = (brief(numbers[key]) for key in ("peak_weight_versions", "steady_staleness_updates"))
    return f"{name}: idle {drawn.bubble_fraction:.0%} · weight versions {versions} · delay {delay} updates"
