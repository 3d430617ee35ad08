"""What Tables 1 and 2 hold: our comparisons beside the paper's, an optimizer a row. table_formats.py prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from gaps import Comparison, Estimate, compare_optimizers, paper_comparison
from labels import in_order


@dataclass(frozen=True)
class Row:
    """One optimizer: our comparison, and the paper's with its mark where the paper gives one."""

    optimizer: str
    ours: Comparison
    paper: Comparison | None
    mark: str | None


@dataclass(frozen=True)
class Table:
    """file_name: without a suffix. setting: what our runs have in common. conditions: the columns of losses.

    has_recovered: whether the share of the gap that EF recovers is a column, too.
    """

    file_name: str
    title: str
    setting: str
    rows: list[Row]
    conditions: tuple[str, ...]
    has_recovered: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Losses and gap in nats per token, the recovered share as a fraction."""
        return (*self.conditions, "gap", *(("recovered_fraction",) if self.has_recovered else ()))

    def estimates(self, comparison: Comparison | None) -> list[Estimate | None]:
        """The cells of ``columns``, None where there is no value."""
        if comparison is None:
            return [None] * len(self.columns)
        known = {**comparison.losses, "gap": comparison.gap, "recovered_fraction": comparison.recovered}
        return [known[name] for name in self.columns]

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain values, for CSV and JSON: None where there is none, the paper's under ``paper_``."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: Row) -> dict[str, Any]:
        record: dict[str, Any] = {"optimizer": row.optimizer}
        for name, estimate in zip(self.columns, self.estimates(row.ours), strict=True):
            record[name] = estimate.mean if estimate else None
            record[f"{name}_spread"] = estimate.spread if estimate else None
            record[f"{name}_num_seeds"] = estimate.num_seeds if estimate else 0
        if self.has_recovered:
            record["recovered_undefined"] = row.ours.undefined
        for name, estimate in zip(self.columns, self.estimates(row.paper), strict=True):
            record[f"paper_{name}"] = estimate.mean if estimate else None
        return record | {"paper_mark": row.mark}


def make_tables(frame: pd.DataFrame) -> list[Table]:
    """Tables 1 and 2 of a frame of runs.load_runs, with a row for each optimizer that it holds."""
    comparisons = compare_optimizers(frame)
    rows = []
    for optimizer in in_order(comparisons):
        theirs, mark = paper_comparison(optimizer) or (None, None)
        rows.append(Row(optimizer, comparisons[optimizer], theirs, mark))
    run = frame.iloc[0]  # the same for all: load_runs refuses anything else
    setting = f"model={run['model']}, {run['num_steps']:,} steps, {run['tokens_seen']:,} tokens a run"
    delay = "Table 1. What a one-step gradient delay costs"
    feedback = "Table 2. What error feedback (EF) wins back"
    return [
        Table("table1", delay, setting, rows, conditions=("sync", "async"), has_recovered=False),
        Table("table2", feedback, setting, rows, conditions=("sync", "async", "async_ef"), has_recovered=True),
    ]
