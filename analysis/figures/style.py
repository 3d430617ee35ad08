"""The look that all figures share: sizes, a colour, dash and mark for each thing that is compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rcParams, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labels import CONDITIONS

STYLE = Path(__file__).parents[1] / "asyncpp.mplstyle"

WIDTH_IN = {1: 3.4, 2: 5.2, 3: 6.9}  # by number of columns: a journal's column, half-way, and its full width
ROW_HEIGHT_IN = 1.7
LEGEND_HEIGHT_IN = 0.6  # with the label below the panels

# Each for one of the style's colours, so that series are told apart in greyscale, too.
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


def in_style() -> Any:
    """A context in which matplotlib draws as asyncpp.mplstyle says."""
    return style.context(STYLE)


def condition_looks() -> dict[str, dict[str, Any]]:
    """Colour, dashes and mark of each of labels.CONDITIONS; to be asked for in_style."""
    looks = zip(CONDITIONS, rcParams["axes.prop_cycle"], _MARKS, strict=False)
    return {name: {**look, "marker": mark} for name, look, mark in looks}


def series_looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and mark of each of ``names``, in their order; they come round after nine. To be asked for in_style."""
    looks = [
        {"color": look["color"], "marker": mark} for look, mark in zip(rcParams["axes.prop_cycle"], _MARKS, strict=True)
    ]
    return {name: looks[index % len(looks)] for index, name in enumerate(names)}


def legend_above(figure: Figure, titles: Sequence[str], num_columns: int | None = None) -> None:
    """One legend for all panels, above them: those of ``titles`` that some panel draws, in this order."""
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    shown = [title for title in titles if title in handles]
    figure.legend(
        [handles[title] for title in shown], shown, loc="outside upper center", ncols=num_columns or len(shown)
    )


def letter(panels: Sequence[Axes]) -> None:
    """(a), (b), ... before the titles, for captions to name panels by."""
    for index, panel in enumerate(panels):
        panel.set_title(f"({chr(ord('a') + index)}) {panel.get_title()}".rstrip())
