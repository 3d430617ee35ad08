"""What Tables 1 to 3 hold: our comparisons beside the paper's, a row an optimizer and scale.

loss_table_formats.py prints them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments import EXPERIMENTS, Experiments, Missing, sweep_command
from gaps import Comparison, Estimate, compare_optimizers, paper, paper_comparison, paper_moe_comparison
from labels import CONDITIONS, OPTIMIZERS, in_order, optimizer_title


@dataclass(frozen=True)
class Row:
    """One optimizer at one scale: our comparison, and the paper's with its mark where the paper gives one.

    model: the scale. A row without ours is the paper's alone, of an optimizer that is not known.
    """

    optimizer: str | None
    model: str | None
    ours: Comparison | None
    paper: Comparison | None
    mark: str | None


@dataclass(frozen=True)
class Table:
    """file_name: without a suffix. settings: what our runs of each scale have in common. conditions: the columns of
    losses. has_recovered: whether the share of the gap that EF recovers is a column, too. paper_setting: the paper's
    model and data. missing: what has no run yet, with the command that makes it, and what failed."""

    file_name: str
    title: str
    settings: list[str]
    rows: list[Row]
    conditions: tuple[str, ...]
    has_recovered: bool
    paper_setting: str
    missing: list[str]

    @property
    def columns(self) -> tuple[str, ...]:
        """Losses and gap in nats per token, the recovered share as a fraction."""
        return (*self.conditions, "gap", *(("recovered_fraction",) if self.has_recovered else ()))

    @property
    def has_scales(self) -> bool:
        """Runs of more than one scale are in it."""
        return len(self.settings) > 1

    def estimates(self, comparison: Comparison | None) -> list[Estimate | None]:
        """The cells of ``columns``, None where there is no value."""
        if comparison is None:
            return [None] * len(self.columns)
        known = {**comparison.losses, "gap": comparison.gap, "recovered_fraction": comparison.recovered}
        return [known[name] for name in self.columns]

    def num_seeds(self, comparison: Comparison | None, condition: str) -> int:
        """Of a condition's mean."""
        estimate = comparison.losses[condition] if comparison else None
        return estimate.num_seeds if estimate else 0

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain values, for CSV and JSON: None where there is none, the paper's under ``paper_``."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: Row) -> dict[str, Any]:
        record: dict[str, Any] = {"optimizer": row.optimizer, "scale": row.model}
        for name, estimate in zip(self.columns, self.estimates(row.ours), strict=True):
            record[name] = estimate.mean if estimate else None
            record[f"{name}_spread"] = estimate.spread if estimate else None
            record[f"{name}_num_seeds"] = estimate.num_seeds if estimate else 0
            if name not in self.conditions:
                interval = estimate.interval if estimate else None
                record[f"{name}_low"] = interval.low if interval else None
                record[f"{name}_high"] = interval.high if interval else None
            if name == "gap":
                record["gap_p_value"] = estimate.p_value if estimate else None
        if self.has_recovered:
            record["recovered_undefined"] = row.ours.undefined if row.ours else None
        for name, estimate in zip(self.columns, self.estimates(row.paper), strict=True):
            record[f"paper_{name}"] = estimate.mean if estimate else None
        return record | {"paper_mark": row.mark}


def optimizer_tables(experiments: Experiments) -> list[Table]:
    """Tables 1 and 2; none where no runs can be compared."""
    rows, settings = _rows(experiments.frames["optimizers"])
    if not rows:
        return []
    tables = []
    for name, title, conditions, has_recovered in (
        ("table1", "Table 1. What a one-step gradient delay costs", ("sync", "async"), False),
        ("table2", "Table 2. What error feedback (EF) wins back", ("sync", "async", "async_ef"), True),
    ):
        missing = _incomplete(experiments, "optimizers", conditions) + _not_run(rows)
        setting = paper()["small_model"]["setting"]
        tables.append(Table(name, title, settings, rows, conditions, has_recovered, setting, missing))
    return tables


def mixture_tables(experiments: Experiments) -> list[Table]:
    """Table 3; none where no runs can be compared."""
    rows, settings = _rows(experiments.frames["moe"])
    if not rows:
        return []
    rows = [Row(row.optimizer, row.model, row.ours, None, None) for row in rows]
    theirs, mark = paper_moe_comparison() or (None, None)
    conditions = ("sync", "async", "async_ef")
    missing = _incomplete(experiments, "moe", conditions)
    rows.append(Row(None, None, None, theirs, mark))
    title, setting = "Table 3. The same for a mixture of experts", paper()["large_model"]["setting"]
    return [Table("table3", title, settings, rows, conditions, True, setting, missing)]


def not_made(experiments: Experiments, tables: Iterable[str]) -> list[Missing]:
    """Which of the paper's tables are not among ``tables`` (names of files), and how to make them."""
    made = list(tables)
    made_of = (
        ("table1", "optimizers", "comparable runs"),
        ("table3", "moe", "comparable runs"),
        ("table4", "downstream", "scored runs"),
    )
    return [
        experiments.missing(name, EXPERIMENTS[experiment].makes, experiment, runs)
        for name, experiment, runs in made_of
        if not any(table.startswith(name) for table in made)
    ]


def _rows(frames: Mapping[str, pd.DataFrame]) -> tuple[list[Row], list[str]]:
    """A row for each optimizer and scale, and the setting of each scale that has one."""
    comparisons = {model: compare_optimizers(frame) for model, frame in frames.items()}
    rows = []
    for optimizer in in_order(name for own in comparisons.values() for name in own):
        theirs, mark = paper_comparison(optimizer) or (None, None)
        for model, own in comparisons.items():
            if optimizer in own:
                rows.append(Row(optimizer, model, own[optimizer], theirs, mark))
    settings = []
    for model, own in comparisons.items():
        if own:
            settings.append(setting_of(frames[model]))
    return rows, settings


def setting_of(frame: pd.DataFrame) -> str:
    """What the runs of one scale have in common: comparable_runs refuses any that differ in it."""
    run = frame.iloc[0]
    return f"model={run['model']}, {run['num_steps']:,} steps, {run['tokens_seen']:,} tokens a run"


def _incomplete(experiments: Experiments, name: str, conditions: tuple[str, ...]) -> list[str]:
    """At each scale of the experiment called ``name`` the seeds that a cell lacks and another has, and what would make
    them; and the runs that failed, which no command makes good."""
    experiment, missing = EXPERIMENTS[name], []
    for model, frame in experiments.frames[name].items():
        there = frame[frame["condition"].isin(list(CONDITIONS))]
        lost = [run for run in experiments.failed[name] if run.model == model and run.condition in conditions]
        seeds = {int(seed) for seed in there["seed"]}
        short = []
        for optimizer, condition in itertools.product(in_order(there["optimizer"]), conditions):
            own = there[(there["optimizer"] == optimizer) & (there["condition"] == condition)]
            gone = {run.seed for run in lost if (run.optimizer, run.condition) == (optimizer, condition)}
            if absent := sorted(seeds - {int(seed) for seed in own["seed"]} - gone):
                short.append(f"{_cell(optimizer, condition)} ({_seeds(absent)})")
        if short:
            sweep = str(frame["sweep_name"].iloc[0])
            every, is_own = sorted(seeds), sweep in experiment.sweeps
            command = experiment.command(model, every) if is_own else sweep_command(sweep, seeds=every)
            missing.append(f"No runs yet: {', '.join(short)}: {command}")
        missing += [
            f"In no mean, as it failed: {_cell(run.optimizer, run.condition)} ({_seeds([run.seed])}): {run.reason}"
            for run in lost
        ]
    return missing


def _cell(optimizer: str, condition: str) -> str:
    return f"{optimizer_title(optimizer)} {CONDITIONS[condition]}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(str(seed) for seed in seeds)}"


def _not_run(rows: Sequence[Row]) -> list[str]:
    """At each scale the paper's optimizers of which there is no run, and what would make them."""
    missing = []
    for model in dict.fromkeys(row.model for row in rows):
        there = {row.optimizer for row in rows if row.model == model}
        absent = [OPTIMIZERS[name] for name in paper()["small_model"]["losses"] if name not in there]
        if absent:
            missing.append(f"No runs yet: {', '.join(absent)}: {EXPERIMENTS['optimizers'].command(model)}")
    return missing
