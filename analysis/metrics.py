"""What a run measured over its steps: the one reader of metrics.jsonl that tables and figures have."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from asyncpp.records import METRICS_FILE, read_metrics
from runs import UNREADABLE, UnusableRun

Measurement = tuple[int, str, float]  # step, key and value


def measurements(folder: Path, *prefixes: str, containing: str = "") -> list[Measurement]:
    """Everything that the run in ``folder`` measured under a key that begins with one of ``prefixes``, in order.

    containing: only of rows with this text, the others being passed over unparsed. A value that was not finite, which
    a run writes as null, is NaN.
    Raises UnusableRun where a row is not a step's numbers by key.
    """
    try:
        return [
            (int(row["step"]), key, math.nan if value is None else float(value))
            for row in read_metrics(folder / METRICS_FILE, containing)
            for key, value in row.items()
            if key.startswith(prefixes)
        ]
    except UNREADABLE:
        raise UnusableRun(f"{METRICS_FILE} cannot be read") from None


def series(folder: Path, *keys: str, containing: str = "") -> list[pd.Series]:
    """The values of each of ``keys`` by step, empty where there are none. containing, UnusableRun: see measurements."""
    found = measurements(folder, *keys, containing=containing)
    return [pd.Series({step: value for step, name, value in found if name == key}, dtype=float) for key in keys]
