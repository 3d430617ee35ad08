"""Table 4: accuracies of the conditions on each benchmark, and whether error feedback differs from sync, item by item.

What eval/run.py left beside the runs is read: <run>/eval/step-<num_steps>-x.json, the scores of the last checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asyncpp.errors import ConfigError
from gaps import paper
from labels import BENCHMARKS, CONDITIONS, in_order, optimizer_title
from table_formats import MISSING, aligned, latex_cell, wrapped

FILE_NAME = "table4"
TITLE = "Table 4. What the delay does downstream"
SETTINGS = ("num_fewshot", "limit", "max_length", "dtype", "items_sha256")  # in which compared scores must agree
NUM_RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """async with EF minus sync, over the seeds that both have. low, high: its LEVEL interval, over items."""

    mean: float
    low: float
    high: float
    num_seeds: int


@dataclass(frozen=True)
class Row:
    """One optimizer on one benchmark. accuracies: fractions by condition, means over seeds; None without a run."""

    optimizer: str
    task: str
    metric: str
    num_items: int
    accuracies: Mapping[str, float | None]
    difference: Difference | None

    @property
    def paper(self) -> Mapping[str, Any]:
        return paper()["downstream_accuracy"].get(self.task, {})

    def record(self) -> dict[str, Any]:
        """Plain values for CSV and JSON."""
        d = self.difference
        own: dict[str, Any] = {"optimizer": self.optimizer, "task": self.task, "metric": self.metric}
        own |= {"num_items": self.num_items, **self.accuracies}
        own |= {"difference": d.mean if d else None, "low": d.low if d else None, "high": d.high if d else None}
        own |= {f"paper_{name}": self.paper.get(name) for name in ("sync", "async_ef")}
        return own | {"num_seeds": d.num_seeds if d else 0, "paper_mark": self.paper.get("mark")}


def make_rows(frame: pd.DataFrame) -> list[Row]:
    """A row for each optimizer and benchmark that runs of ``frame`` (of runs.comparable) were scored on."""
    cells = zip(*(frame[name] for name in ("optimizer", "condition", "seed", "folder", "num_steps")), strict=True)
    scored = [
        (optimizer, (condition, seed), scores_of(folder, int(num_steps)))
        for optimizer, condition, seed, folder, num_steps in cells
    ]
    rows = []
    for optimizer in in_order(name for name, _, _ in scored):
        for task, (_, metric) in BENCHMARKS.items():
            own = {cell: scores[task] for name, cell, scores in scored if name == optimizer and task in scores}
            if own:
                rows.append(_row(optimizer, task, metric, own))
    return rows


def scores_of(run: Path, num_steps: int) -> dict[str, dict[str, Any]]:
    """The entry of each task in the scores after ``num_steps`` at x; of several settings the one with most items."""
    file = run / "eval" / f"step-{num_steps:08d}-x.json"
    if not file.exists():
        return {}
    try:
        entries = json.loads(file.read_text())["results"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError("runs", run, f"{file} holds no scores; remove it") from None
    return {entry["task"]: entry for entry in sorted(entries, key=lambda entry: entry["n"])}


def _row(optimizer: str, task: str, metric: str, entries: Mapping[tuple[str, int], Mapping[str, Any]]) -> Row:
    first, *others = ({key: entry[key] for key in SETTINGS} for entry in entries.values())
    for other in others:
        differing = [key for key in SETTINGS if other[key] != first[key]]
        if differing:
            key = differing[0]
            accepted = f"expected scores of {task} with one {key} for all, not {first[key]} and {other[key]}"
            raise ConfigError("runs", optimizer, accepted)
    marks = {cell: marks_of(entry, metric) for cell, entry in entries.items()}
    accuracies = {
        name: float(np.mean(own)) if (own := [m for (condition, _), m in marks.items() if condition == name]) else None
        for name in CONDITIONS
    }
    seeds = [seed for condition, seed in marks if condition == "sync" and ("async_ef", seed) in marks]
    paired = [(marks["sync", seed], marks["async_ef", seed]) for seed in seeds]
    return Row(optimizer, task, metric, len(next(iter(marks.values()))), accuracies, difference(paired))


def marks_of(entry: Mapping[str, Any], metric: str) -> np.ndarray:
    """(items,) of 0 and 1: which were answered correctly."""
    packed = np.frombuffer(bytes.fromhex(entry["correct"][metric]), np.uint8)
    return np.unpackbits(packed, count=entry["n"]).astype(np.int64)


def difference(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Difference | None:
    """Of marks (items,) of 0 and 1 by seed: sync's and the other's. Resampling whole items keeps each one's pairing.

    The seeds' own variation is not in the interval: it holds for these trained models.
    """
    if not pairs:
        return None
    sums = np.sum([other - sync for sync, other in pairs], axis=0)
    values, counts = np.unique(sums, return_counts=True)
    resampled = np.random.default_rng(0).multinomial(len(sums), counts / len(sums), NUM_RESAMPLES) @ values
    low, high = np.quantile(resampled / (len(sums) * len(pairs)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(float(sums.mean()) / len(pairs), float(low), float(high), len(pairs))


def to_markdown(rows: list[Row]) -> str:
    header = ["optimizer", "benchmark", "items", *CONDITIONS.values(), "EF - sync", "95 % interval"]
    lines = []
    for row in rows:
        lines.append([optimizer_title(row.optimizer), BENCHMARKS[row.task][0], f"{row.num_items:,}", *_cells(row)])
        if row.paper:
            theirs = [_number(row.paper.get(name)) for name in CONDITIONS]
            change = row.paper["async_ef"] - row.paper["sync"]
            lines.append(["", f"paper [{row.paper['mark']}]", MISSING, *theirs, f"{change:+.3f}", MISSING])
    return "\n".join([f"### {TITLE}", "", *aligned(header, lines), "", *wrapped(legend())]) + "\n"


def to_csv(rows: list[Row]) -> str:
    return pd.DataFrame([row.record() for row in rows]).to_csv(index=False, float_format="%.6g")


def to_latex(rows: list[Row]) -> str:
    names = ["optimizer", "benchmark", "items", *CONDITIONS.values(), "EF - sync", "interval", "paper sync", "paper EF"]
    lines = [*(f"% {line}" for line in (TITLE, *legend())), rf"\begin{{tabular}}{{ll{'r' * 8}}}", r"\toprule"]
    lines += [" & ".join(names) + r" \\", r"\midrule"]
    for row in rows:
        theirs = [_number(row.paper.get(name)) for name in ("sync", "async_ef")]
        cells = [optimizer_title(row.optimizer), BENCHMARKS[row.task][0], str(row.num_items), *_cells(row), *theirs]
        lines.append(" & ".join(latex_cell(cell) for cell in cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def legend() -> list[str]:
    """What a reader must know beside the cells."""
    own = ", ".join(f"{title} {metric}" for title, metric in BENCHMARKS.values())
    return [
        f"Accuracies, higher is better, of the last checkpoint at x, means over seeds: {own}; "
        "the paper does not say which.",
        "Chance is 0.25, for PIQA and BoolQ 0.50. Near it a difference says nothing of larger models.",
        "EF - sync: over the seeds that have both, with the interval of a paired bootstrap over items; where it "
        "contains 0, these items show no difference. It does not cover the variation over seeds.",
        f"paper: {paper()['source']}, {paper()['large_model']['setting']}.",
    ]


def _cells(row: Row) -> Iterator[str]:
    yield from (_number(row.accuracies[name]) for name in CONDITIONS)
    d = row.difference
    yield from (f"{d.mean:+.3f}", f"[{d.low:+.3f}, {d.high:+.3f}]") if d else (MISSING, MISSING)


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"
