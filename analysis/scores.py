"""What eval/run.py left beside a run: <run>/eval/step-<num_steps>-x.json, the scores of its last checkpoint.

The file's form is told in eval/results.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labels import BENCHMARKS
from runs import UNREADABLE, PassedOver, UnusableRun

SETTINGS = ("num_fewshot", "limit", "max_length", "dtype", "items_sha256", "n")  # in which compared scores must agree


def scores_of(run: Path, num_steps: int) -> dict[str, dict[str, Any]]:
    """The entry of each of BENCHMARKS in the scores after ``num_steps`` at x; of several settings the one with most
    items. Empty where there are none.

    Raises UnusableRun where the file is not what evaluation writes.
    """
    file = run / "eval" / f"step-{num_steps:08d}-x.json"
    try:
        entries = json.loads(file.read_bytes())["results"]
        own = [entry for entry in entries if entry["task"] in BENCHMARKS]
        for entry in own:
            _require_mean(entry, BENCHMARKS[entry["task"]].metric)
            _ = [entry[key] for key in SETTINGS]
        return {entry["task"]: entry for entry in sorted(own, key=lambda entry: entry["n"])}
    except FileNotFoundError:
        return {}
    except UNREADABLE:
        raise UnusableRun(f"eval/{file.name} holds no scores that can be read: remove it, and score again") from None


def unreadable_scores(runs: Iterable[Mapping[str, Any]]) -> Iterator[PassedOver]:
    """Those of ``runs`` (rows of runs.read_runs) whose scores no table or claim can count."""
    for run in runs:
        try:
            scores_of(run["folder"], run["num_steps"])
        except UnusableRun as reason:
            yield PassedOver(run["folder"], str(reason))


def marks_of(entry: Mapping[str, Any], metric: str) -> np.ndarray:
    """(items,) of 0 and 1: which were answered correctly. Raises ValueError where there is not one for each item, and
    where one beyond the last item is set."""
    packed = np.frombuffer(bytes.fromhex(entry["correct"][metric]), np.uint8)
    num_items = entry["n"]
    if num_items < 1 or packed.size != -(-num_items // 8):
        raise ValueError(f"{packed.size} bytes of marks for {num_items} items")
    bits = np.unpackbits(packed)
    if bits[num_items:].any():
        raise ValueError(f"a mark beyond the last of {num_items} items")
    return bits[:num_items].astype(np.int64)


def _require_mean(entry: Mapping[str, Any], metric: str) -> None:
    """Raise ValueError where the marks of ``entry`` have another mean than the score that it tells: the bytes of the
    marks alone leave up to seven numbers of items open."""
    mean = marks_of(entry, metric).mean()
    told = entry.get("metrics", {}).get(metric, {"value": mean})["value"]
    if not math.isclose(told, mean, abs_tol=1e-9):
        raise ValueError(f"a score of {told} with marks whose mean is {mean}")
