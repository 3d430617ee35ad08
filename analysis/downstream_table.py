"""Table 4: accuracies of the conditions on each benchmark, and whether error feedback differs from sync, item by item.

What eval/run.py left beside the runs is read (scores.py); a run without scores that can be read counts in no cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from asyncpp.errors import ConfigError
from experiments import EXPERIMENTS, SCORE, sweep_command
from gaps import Estimate, estimate, paper
from labels import BENCHMARKS, CONDITIONS, in_order, optimizer_title
from loss_tables import setting_of
from runs import UnusableRun
from scores import SETTINGS, marks_of, scores_of
from significance import Difference, difference
from table_text import MISSING, aligned, booktabs, counts_text, csv_text, estimate_text, wrapped

FILE_NAME = "table4"
TITLE = "Table 4. What the delay does downstream"
HEADER = ("benchmark", "source", "items", *CONDITIONS.values(), "EF - sync [95 %]")


@dataclass(frozen=True)
class Row:
    """One optimizer on one benchmark. scores: accuracies (fractions) by condition, over the seeds of each; None
    without a run. difference: async with EF minus sync, over the seeds that both have. seeds: those of each score."""

    optimizer: str
    task: str
    metric: str
    num_items: int
    scores: Mapping[str, Estimate | None]
    difference: Difference | None
    seeds: Mapping[str, set[int]]

    @property
    def accuracies(self) -> dict[str, float | None]:
        """The mean of each condition."""
        return {name: score.mean if score else None for name, score in self.scores.items()}

    @property
    def num_seeds(self) -> dict[str, int]:
        """Of each condition."""
        return {name: score.num_seeds if score else 0 for name, score in self.scores.items()}

    def record(self) -> dict[str, Any]:
        """Plain values for CSV and JSON."""
        own: dict[str, Any] = {"optimizer": self.optimizer, "task": self.task, "metric": self.metric}
        own["num_items"] = self.num_items
        for name, score in self.scores.items():
            own |= {name: self.accuracies[name], f"{name}_spread": score.spread if score else None}
            own[f"{name}_num_seeds"] = self.num_seeds[name]
        d = self.difference
        own |= {"difference": d.mean if d else None, "low": d.low if d else None, "high": d.high if d else None}
        return own | {"difference_num_seeds": d.num_seeds if d else 0}


@dataclass(frozen=True)
class Table:
    """The rows of one scale. setting: what was scored. missing: what has no scores yet, with the command for it."""

    setting: str
    rows: list[Row]
    missing: list[str]

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain values, and the paper's after them, whose optimizer is not known."""
        theirs = [
            {"task": task, **{f"paper_{key}": value for key, value in _paper(task).items()}}
            for task in dict.fromkeys(row.task for row in self.rows)
            if _paper(task)
        ]
        records = [*(row.record() for row in self.rows), *theirs]
        keys = dict.fromkeys(key for record in records for key in record)
        return [{key: record.get(key) for key in keys} for record in records]


def make_table(frame: pd.DataFrame) -> Table | None:
    """The table of the runs of ``frame`` (of comparable_runs), None where none is scored."""
    rows = make_rows(frame)
    if not rows:
        return None
    sweeps = ", ".join(sorted(set(frame["sweep_name"])))
    return Table(f"runs of {sweeps}, {setting_of(frame)}", rows, _missing(rows, frame))


def make_rows(frame: pd.DataFrame) -> list[Row]:
    """A row for each benchmark and optimizer that runs of ``frame`` (of comparable_runs) were scored on."""
    cells = zip(*(frame[name] for name in ("optimizer", "condition", "seed", "folder", "num_steps")), strict=True)
    scored = [
        (optimizer, (condition, seed), _scores(folder, int(num_steps)))
        for optimizer, condition, seed, folder, num_steps in cells
    ]
    rows = []
    for task, benchmark in BENCHMARKS.items():
        for optimizer in in_order(name for name, _, _ in scored):
            own = {cell: scores[task] for name, cell, scores in scored if name == optimizer and task in scores}
            if own:
                rows.append(_row(optimizer, task, benchmark.metric, own))
    return rows


def _scores(run: Path, num_steps: int) -> dict[str, dict[str, Any]]:
    """None where they cannot be read: load_experiments has listed them."""
    try:
        return scores_of(run, num_steps)
    except UnusableRun:
        return {}


def _row(optimizer: str, task: str, metric: str, entries: Mapping[tuple[str, int], Mapping[str, Any]]) -> Row:
    first, *others = ({key: entry[key] for key in SETTINGS} for entry in entries.values())
    for other in others:
        differing = [key for key in SETTINGS if other[key] != first[key]]
        if differing:
            key = differing[0]
            accepted = f"expected scores of {task} with one {key} for all, not {first[key]} and {other[key]}"
            raise ConfigError("runs", optimizer, accepted)
    marks = {cell: marks_of(entry, metric) for cell, entry in entries.items()}
    seeds = {name: {seed for condition, seed in marks if condition == name} for name in CONDITIONS}
    accuracies = {name: {seed: marks[name, seed].mean() for seed in sorted(seeds[name])} for name in CONDITIONS}
    scores = {name: estimate(pd.Series(own, dtype=float)) for name, own in accuracies.items()}
    paired = [(marks["sync", seed], marks["async_ef", seed]) for seed in sorted(seeds["sync"] & seeds["async_ef"])]
    return Row(optimizer, task, metric, len(next(iter(marks.values()))), scores, difference(paired), seeds)


def to_markdown(table: Table, title: str = TITLE) -> str:
    notes = wrapped([*legend(table), *table.missing])
    return "\n".join([f"### {title}", "", *aligned(HEADER, list(_lines(table))), "", *notes]) + "\n"


def to_csv(table: Table) -> str:
    return csv_text(pd.DataFrame(table.records()))


def to_latex(table: Table, title: str = TITLE) -> str:
    return booktabs([title, *legend(table)], HEADER, list(_lines(table)))


def legend(table: Table) -> list[str]:
    """What a reader must know beside the cells."""
    numbers = paper()
    metrics = ", ".join(f"{own.title} {own.metric} ({own.chance:g})" for own in BENCHMARKS.values())
    marks = ", ".join(f"[{mark}] {meaning}" for mark, meaning in numbers["marks"].items())
    return [
        f"Accuracies, higher is better, of the last checkpoint at x: {metrics}; in brackets that of a guess, near "
        "which a difference says nothing of larger models. Which metrics the paper's are is not known to us.",
        f"ours: {table.setting}; mean ±sample standard deviation over n seeds, column by column where n differs.",
        "EF - sync: over the seeds that have both, with the interval of a paired bootstrap over items; where it "
        "contains 0, these items show no difference. It does not cover the variation over seeds.",
        f"paper: {numbers['source']}, {numbers['large_model']['setting']}, of an optimizer that is not known to us; "
        f"{marks}.",
    ]


def _lines(table: Table) -> Iterator[list[str]]:
    """Of each benchmark a line an optimizer, and then the paper's."""
    for task, benchmark in BENCHMARKS.items():
        lines = [_ours(row) for row in table.rows if row.task == task]
        if lines and _paper(task):
            lines.append(_theirs(_paper(task)))
        for place, line in enumerate(lines):
            yield [benchmark.title if place == 0 else "", *line]


def _ours(row: Row) -> list[str]:
    scores = [estimate_text(score, 3) if score else MISSING for score in row.scores.values()]
    d = row.difference
    change = f"{d.mean:+z.3f} [{d.low:+z.3f}, {d.high:+z.3f}]" if d else MISSING
    return [
        f"{optimizer_title(row.optimizer)} n={counts_text(row.num_seeds.values())}",
        f"{row.num_items:,}",
        *scores,
        change,
    ]


def _theirs(numbers: Mapping[str, Any]) -> list[str]:
    scores = [f"{numbers[name]:.3f}" if name in numbers else MISSING for name in CONDITIONS]
    return [f"paper [{numbers['mark']}]", MISSING, *scores, f"{numbers['async_ef'] - numbers['sync']:+z.3f}"]


def _paper(task: str) -> Mapping[str, Any]:
    """The paper's accuracies by condition, and their mark; empty where none is known."""
    return paper()["downstream_accuracy"].get(task, {})


def _missing(rows: Sequence[Row], frame: pd.DataFrame) -> list[str]:
    """The cells that lack a seed which another has, and what trains and scores the runs for them."""
    scored = {(row.optimizer, row.task, name): seeds for row in rows for name, seeds in row.seeds.items()}
    every = set().union(*scored.values())
    tasks = [task for task in BENCHMARKS if any(row.task == task for row in rows)]
    cells = []
    for optimizer in in_order(row.optimizer for row in rows):
        for name, title in CONDITIONS.items():
            short = [task for task in tasks if every - scored.get((optimizer, task, name), set())]
            on = "" if short == tasks else f" on {', '.join(BENCHMARKS[task].title for task in short)}"
            cells += [f"{optimizer_title(optimizer)} {title}{on}"] if short else []
    unscored = set(frame.loc[frame["condition"].isin(list(CONDITIONS)), "optimizer"]) - {row.optimizer for row in rows}
    cells += [optimizer_title(optimizer) for optimizer in in_order(unscored)]
    others = [own.title for task, own in BENCHMARKS.items() if task not in tasks]
    cells += [f"all on {', '.join(others)}"] if others else []
    return [f"No scores yet: {'; '.join(cells)}: {scoring_command(frame)}"] if cells else []


def scoring_command(frame: pd.DataFrame, seeds: Sequence[int] | None = None) -> str:
    """What trains the conditions of a frame with ``seeds``, all of its own unless told otherwise, and scores them."""
    sweep, model = str(frame["sweep_name"].iloc[0]), str(frame["model"].iloc[0])
    seeds = seeds or sorted({int(seed) for seed in frame["seed"]})
    own = [experiment for experiment in EXPERIMENTS.values() if sweep in experiment.sweeps and not experiment.then]
    train = own[0].command(model, seeds) if own else sweep_command(sweep, seeds=seeds)
    return f"{train} && {SCORE.format(folder=sweep)}"
