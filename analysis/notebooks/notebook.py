"""What every notebook begins with: where the runs are, and how a table or a figure is shown.

The runs are those below the repository's ``runs`` folder, or below the one that the environment's ASYNCPP_RUNS names.
"""

from __future__ import annotations

import os
import sys
from io import BytesIO
from pathlib import Path

from IPython.display import Image, Markdown, display
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "analysis"), str(ROOT)]

from all_tables import make_one_table  # noqa: E402
from experiments import Experiments, Missing  # noqa: E402
from figures.catalogue import draw  # noqa: E402
from figures.style import in_style  # noqa: E402

RUNS = Path(os.environ.get("ASYNCPP_RUNS", ROOT / "runs"))
DOTS_PER_INCH = 150  # of a figure on the screen
NUM_STAGES = NUM_MICRO_BATCHES = 4  # of the pipeline whose schedules the time to a loss is compared for


def show(figure: Figure) -> None:
    png = BytesIO()
    with in_style():
        figure.savefig(png, format="png", dpi=DOTS_PER_INCH)
    display(Image(png.getvalue()))


def show_figure(experiments: Experiments, name: str) -> None:
    """The figure called ``name``, at each scale that has runs of it, or the command that makes them."""
    for entry in draw(experiments, name):
        if isinstance(entry, Missing):
            display(Markdown(f"Not here: {entry.reason}. `{entry.command}`"))
            continue
        show(entry.figure)
        display(Markdown(entry.caption))


def show_table(experiments: Experiments, name: str) -> None:
    """The table whose files are called ``name``, at each scale that has runs of it."""
    shown = make_one_table(experiments, name, NUM_STAGES, NUM_MICRO_BATCHES)
    for table in shown:
        display(Markdown(table.texts[0]))
    if not shown:
        display(Markdown(f"Not here: no runs for {name}. `python analysis/make_tables.py` says what makes them."))
