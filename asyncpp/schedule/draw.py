"""Pictures of a timeline: a grid for the terminal, a figure for SVG, PNG or PDF, and a trace that Perfetto opens.

A cell's number is the micro-batch, counted through the schedule's batches from zero; with several chunks
a letter names the chunk. Colours are weight versions: light for a forward, full for a backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncpp.schedule.action import FORWARD, RECV, SEND, UPDATE, Action, Schedule
from asyncpp.schedule.palette import NUM_COLOURS, colours
from asyncpp.schedule.report import brief, report
from asyncpp.schedule.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.text import Text

_UPDATE_MARK = "│"
_CELL_INCHES, _ROW_INCHES = 0.22, 0.3
_LEGEND_INCHES = 1.3  # of an entry of the legend
_STYLE: dict[Any, Any] = {"svg.hashsalt": "asyncpp", "svg.fonttype": "none", "font.size": 8}
_SMALLEST_FONT = 3.0  # points; smaller labels are left out
_MICROSECONDS = 1000.0  # of a trace, for one unit of the costs


def label(schedule: Schedule, action: Action) -> str:
    """What a FORWARD's or BACKWARD's cell says."""
    number = schedule.item(action)
    return str(number) if schedule.num_chunks == 1 else f"{number}{chr(ord('a') + action.chunk)}"


def _computes(timeline: Timeline, stage: int) -> Iterator[tuple[Action, float, float]]:
    """The stage's FORWARD, BACKWARD and UPDATE with their start and end."""
    actions = timeline.schedule.stages[stage]
    for action, start, end in zip(actions, timeline.start[stage], timeline.end[stage], strict=True):
        if action.kind is not SEND and action.kind is not RECV:
            yield action, float(start), float(end)


def terminal_grid(timeline: Timeline, width: int) -> list[Text]:
    """The grid in pieces of at most ``width`` columns, each a few lines: time to the right, a stage a line.

    A cell begins with F or B, so that it reads without colours too; ``│`` is an update.
    """
    from rich.text import Text

    schedule = timeline.schedule
    cells = [list(_computes(timeline, stage)) for stage in range(schedule.num_stages)]
    labels = [[_terminal_label(schedule, action) for action, _, _ in row] for row in cells]
    cell_width = 1 + max(len(text) for row in labels for text in row)
    columns_per_unit = cell_width / _shortest(timeline)
    lines = [Text() for _ in cells]
    for line, row, row_labels in zip(lines, cells, labels, strict=True):
        for (action, start, end), text in zip(row, row_labels, strict=True):
            begin, stop = round(start * columns_per_unit), round(end * columns_per_unit)
            line.append(" " * (begin - len(line)))
            if action.kind is not UPDATE:
                text = text if len(line) > begin else f" {text}"  # an update's mark stands for the space
                background, foreground = colours(action.version, action.kind is FORWARD)
                line.append(text.ljust(stop - len(line)), f"{foreground} on {background}")
            elif len(line) == begin:  # or another chunk's mark is there
                line.append(text * max(1, stop - begin), "bold")
    names = [f"stage {stage}".ljust(9) for stage in range(schedule.num_stages)]
    room = max(1, (width - len(names[0])) // cell_width) * cell_width  # so that a piece ends between cells
    pieces = []
    for first in range(0, max(map(len, lines)), room):
        piece = Text()
        for name, line in zip(names, lines, strict=True):
            piece.append(name, "bold").append_text(line[first : first + room]).append("\n")
        pieces.append(piece)
    return pieces


def _terminal_label(schedule: Schedule, action: Action) -> str:
    return _UPDATE_MARK if action.kind is UPDATE else f"{action.kind}{label(schedule, action)}"


def save_figure(
    timelines: Sequence[Timeline], path: Path, titles: Sequence[str] | None = None, unit: str = "units of the costs"
) -> None:
    """``figure_of`` in the format of ``path``'s suffix (svg, png, pdf)."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure = figure_of(timelines, titles, unit)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def figure_of(
    timelines: Sequence[Timeline],
    titles: Sequence[str] | None = None,
    unit: str = "units of the costs",
    width_in: float | None = None,
) -> Figure:
    """One panel a timeline, all on one scale of time.

    titles: of the panels; None says what the schedules cost. unit: of the times. width_in: of the figure, in inches;
    None makes every cell wide enough for its number.
    """
    import matplotlib
    from matplotlib.figure import Figure

    duration = max(timeline.duration for timeline in timelines)
    stages = [timeline.schedule.num_stages for timeline in timelines]
    shortest = min(_shortest_cost(timeline) for timeline in timelines)
    width = width_in or min(max(6.0, duration / shortest * _CELL_INCHES), 40.0)
    height = sum(stages) * _ROW_INCHES + len(timelines) * 0.75 + 0.7
    with matplotlib.rc_context(_STYLE):
        figure = Figure((width, height), layout="constrained")
        panels = figure.subplots(len(timelines), squeeze=False, height_ratios=stages)
        points_per_unit = 72.0 * (width - 0.9) / duration
        titles = titles or [_title(timeline) for timeline in timelines]
        for panel, timeline, title in zip(panels[:, 0], timelines, titles, strict=True):
            panel.set_title(title, loc="left", fontsize=9)
            _draw_panel(panel, timeline, points_per_unit)
            panel.set_xlim(-0.004 * duration, 1.004 * duration)
        panels[-1, 0].set_xlabel(f"time, in {unit}")
        columns = 9 if width_in is None else max(1, int(width_in / _LEGEND_INCHES))
        figure.legend(handles=_legend(timelines), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _title(timeline: Timeline) -> str:
    numbers = report(timeline)
    steady = numbers["steady_bubble_fraction"]
    return (
        f"{timeline.schedule.name}: bubble {timeline.bubble_fraction:.1%}"
        + ("" if steady is None else f" ({steady:.1%} in steady state)")
        + f" · weight versions {brief(numbers['peak_weight_versions'])}"
        + f" · staleness {brief(numbers['steady_staleness_updates'])}"
    )


def _draw_panel(panel: Axes, timeline: Timeline, points_per_unit: float) -> None:
    schedule = timeline.schedule
    longest = max(len(label(schedule, action)) for action in schedule.stages[0] if action.kind is FORWARD)
    for stage in range(schedule.num_stages):
        spans, backgrounds = [], []
        for action, start, end in _computes(timeline, stage):
            if action.kind is UPDATE:  # a line as well, to be seen where it takes no time
                panel.plot([start, start], [stage - 0.45, stage + 0.45], color="black", linewidth=1.8, zorder=3)
                panel.barh(stage, end - start, left=start, height=0.9, color="black", zorder=2)
                continue
            background, foreground = colours(action.version, action.kind is FORWARD)
            spans.append((start, end - start))
            backgrounds.append(background)
            size = min(8.0, (end - start) * points_per_unit / (0.75 * longest))  # so that every label fits its cell
            if size >= _SMALLEST_FONT:
                style = {"color": foreground, "fontsize": size, "ha": "center", "va": "center_baseline"}
                panel.text((start + end) / 2, stage, label(schedule, action), **style)
        panel.broken_barh(spans, (stage - 0.45, 0.9), facecolors=backgrounds, edgecolor="white", linewidth=0.6)
    panel.set_ylim(schedule.num_stages - 0.4, -0.6)
    panel.set_yticks(range(schedule.num_stages), [f"stage {stage}" for stage in range(schedule.num_stages)])
    panel.tick_params(left=False)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _legend(timelines: Sequence[Timeline]) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    schedules = [timeline.schedule for timeline in timelines]
    read = [a.version for schedule in schedules for row in schedule.stages for a in row if a.kind is FORWARD]
    oldest, newest = min(read), max(read)
    handles: list[Artist] = []
    for version in range(oldest, min(newest + 1, oldest + NUM_COLOURS)):
        same = [str(v) for v in range(version, newest + 1, NUM_COLOURS)]
        named = ", ".join(same if len(same) < 4 else [*same[:2], "..."])
        handles.append(Patch(color=colours(version, is_forward=False)[0], label=f"weight version {named}"))
    handles.append(Patch(color="#cccccc", label="light: forward"))
    handles.append(Patch(color="#666666", label="full: backward"))
    handles.append(Line2D([], [], color="black", linewidth=1.8, label="update"))
    return handles


def _shortest(timeline: Timeline) -> float:
    """The duration of the shortest FORWARD or BACKWARD."""
    rows = (_computes(timeline, stage) for stage in range(timeline.schedule.num_stages))
    return min(end - start for row in rows for action, start, end in row if action.kind is not UPDATE)


def _shortest_cost(timeline: Timeline) -> float:
    """The same by the costs: what a picture is drawn for, in which a single shorter cell may go without its number."""
    costs = [timeline.costs.of_stages(name, timeline.schedule.num_stages) for name in ("forward", "backward")]
    return float(min(cost.min() for cost in costs)) / timeline.schedule.num_chunks


def trace(timeline: Timeline) -> dict[str, Any]:
    """Chrome's trace events, a row a stage; a unit of the costs is a millisecond. ui.perfetto.dev opens the file."""
    events: list[dict[str, Any]] = []
    for stage in range(timeline.schedule.num_stages):
        name = {"name": f"stage {stage}"}
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": stage, "args": name})
        for action, start, end in _computes(timeline, stage):
            fields = {"batch": action.batch, "chunk": action.chunk, "version": action.version}
            if action.kind is not UPDATE:
                fields["micro_batch"] = action.micro_batch
            events.append(
                {
                    "ph": "X",
                    "name": str(action),
                    "cat": action.kind.name.lower(),
                    "pid": 0,
                    "tid": stage,
                    "ts": start * _MICROSECONDS,
                    "dur": (end - start) * _MICROSECONDS,
                    "args": fields,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
