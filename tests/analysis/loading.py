"""The runs of one folder as one frame, for tests of what is made of a single experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from comparable_runs import AXES, LoadedRuns, comparable
from experiments import Experiments
from runs import read_runs


def load_runs(runs_dir: Path, axes: Sequence[str] = AXES) -> LoadedRuns:
    """The usable runs anywhere below ``runs_dir``, in order of their paths.

    axes: what they may differ in, as in ``comparable``.
    Raises ConfigError where there is no usable run, and where the usable ones differ in more.
    """
    read = read_runs(runs_dir)
    loaded = comparable(runs_dir, read.rows, axes)
    return LoadedRuns(loaded.frame, sorted(read.passed_over + loaded.passed_over, key=lambda entry: entry.folder))


def only_frame(experiments: Experiments, experiment: str) -> pd.DataFrame:
    """The runs of ``experiment``, which has runs of one scale."""
    (frame,) = experiments.frames[experiment].values()
    return frame
