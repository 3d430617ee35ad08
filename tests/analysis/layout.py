"""Whether a figure can be read: nothing covers anything else or lies outside."""

from __future__ import annotations

import math
from itertools import pairwise

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

WIDEST_IN = 6.9  # a journal's full width
SMALLEST_FONT_PT = 6.0


def check_layout(figure: Figure) -> None:
    """Panels with their labels, the figure's own labels and its legend have places of their own, inside the figure.

    Tick labels of a panel do not overlap each other, and no text is too small to be read in print.
    """
    FigureCanvasAgg(figure).draw()
    assert figure.get_size_inches()[0] <= WIDEST_IN
    labels = [text for text in figure.texts if text.get_text()]
    boxes = [panel.get_tightbbox() for panel in figure.axes]
    boxes += [label.get_window_extent() for label in labels] + [legend.get_window_extent() for legend in figure.legends]
    for index, box in enumerate(boxes):
        assert figure.bbox.x0 - 1 <= box.x0 and box.x1 <= figure.bbox.x1 + 1
        assert figure.bbox.y0 - 1 <= box.y0 and box.y1 <= figure.bbox.y1 + 1
        assert not any(_overlap(box, other) for other in boxes[index + 1 :])
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            ticks = [label for label in axis.get_ticklabels() if label.get_visible() and label.get_text()]
            low, high = sorted(axis.get_view_interval())
            shown = [label for label, at in zip(ticks, axis.get_ticklocs(), strict=False) if low <= at <= high]
            level = [label.get_window_extent() for label in shown if label.get_rotation() == 0.0]
            assert not any(_overlap(a, b) for i, a in enumerate(level) for b in level[i + 1 :]), panel.get_title()
            _check_aslant([label for label in shown if label.get_rotation() != 0.0], figure.dpi)
            assert all(label.get_fontsize() >= SMALLEST_FONT_PT for label in shown)


def _check_aslant(labels: list[Text], dpi: float) -> None:
    """Lines of text at one angle are as far apart as they are high."""
    places = sorted(((label.get_window_extent().x1, label) for label in labels), key=lambda place: place[0])
    for (left, label), (right, _) in pairwise(places):
        apart = (right - left) * math.sin(math.radians(label.get_rotation()))
        assert apart >= label.get_fontsize() * dpi / 72.0, label.get_text()


def _overlap(a, b) -> bool:
    across = min(a.x1, b.x1) - max(a.x0, b.x0)
    along = min(a.y1, b.y1) - max(a.y0, b.y0)
    return across >= 1 and along >= 1
