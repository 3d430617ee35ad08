"""Every table in every form: what make_tables.py writes, the report shows, and a notebook picks one of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import downstream_table
import time_to_loss
from experiments import Experiments, Missing
from loss_table_formats import markdown_legend, markdown_missing, markdown_table, to_csv, to_latex, to_markdown
from loss_tables import Table, mixture_tables, not_made, optimizer_tables
from runs import PassedOver

SUFFIXES = (".md", ".csv", ".tex")


@dataclass(frozen=True)
class WrittenTable:
    """One table in every form. printed: what a terminal shows of it. texts: the files' contents, in SUFFIXES' order.

    missing: what has no runs yet, with the command that makes it.
    """

    file_name: str
    title: str
    records: list[dict[str, Any]]
    printed: str
    texts: tuple[str, str, str]
    missing: list[str]


@dataclass(frozen=True)
class AllTables:
    """tables: those of which there are runs, in the paper's order, and the time to a loss. not_made: the others.

    passed_over: runs that count elsewhere, but not in one of these.
    """

    tables: list[WrittenTable]
    passed_over: list[PassedOver]
    not_made: list[Missing]


def make_all_tables(experiments: Experiments, num_stages: int, num_micro_batches: int) -> AllTables:
    """Every table.

    num_stages, num_micro_batches: of the pipeline whose schedules the time to a loss is compared for.
    """
    tables: list[WrittenTable] = []
    passed_over: list[PassedOver] = []
    for make in dict.fromkeys(MAKERS.values()):
        made, left_out = make(experiments, num_stages, num_micro_batches)
        tables += made
        passed_over += left_out
    return AllTables(tables, passed_over, not_made(experiments, (table.file_name for table in tables)))


def make_one_table(experiments: Experiments, name: str, num_stages: int, num_micro_batches: int) -> list[WrittenTable]:
    """The table whose files are called ``name``, at each scale that has one; of the others nothing is computed."""
    made, _ = MAKERS[name](experiments, num_stages, num_micro_batches)
    return [table for table in made if table.file_name.partition("-")[0] == name]


Made = tuple[list[WrittenTable], list[PassedOver]]


def _optimizers(experiments: Experiments, *_: int) -> Made:
    return _written(optimizer_tables(experiments)), []


def _mixture(experiments: Experiments, *_: int) -> Made:
    return _written(mixture_tables(experiments)), []


def _written(tables: Iterable[Table]) -> list[WrittenTable]:
    """Of tables that are made of the same runs: the last one's legend serves all of them in a terminal."""
    tables = list(tables)
    written = []
    for table in tables:
        legend = f"\n{markdown_legend(table)}" if table is tables[-1] else ""
        printed = f"{markdown_table(table)}{legend}{markdown_missing(table)}"
        texts = (to_markdown(table), to_csv(table), to_latex(table))
        written.append(WrittenTable(table.file_name, table.title, table.records(), printed, texts, table.missing))
    return written


def _scored(experiments: Experiments, *_: int) -> Made:
    """Table 4, one for each scale that has scored runs; with several it is named after the scale, too."""
    tables: dict[str, downstream_table.Table] = {}
    for name in ("downstream", "moe", "optimizers"):  # of a scale, Table 4's own runs before those of the other tables
        for model, frame in experiments.frames[name].items():
            table = None if model in tables else downstream_table.make_table(frame)
            if table:
                tables[model] = table
    written = []
    for model, table in tables.items():
        name, title = downstream_table.FILE_NAME, downstream_table.TITLE
        if len(tables) > 1:
            name, title = f"{name}-{model}", f"{title}, {model}"
        texts = (
            downstream_table.to_markdown(table, title),
            downstream_table.to_csv(table),
            downstream_table.to_latex(table, title),
        )
        written.append(WrittenTable(name, title, table.records(), texts[0], texts, table.missing))
    return written, []


def _times(experiments: Experiments, *shape: int) -> Made:
    frames = [*experiments.frames["optimizers"].values(), *experiments.frames["moe"].values()]
    times = time_to_loss.compare_times(frames, *shape)
    rows = times.rows
    if not rows:
        return [], times.passed_over
    markdown = time_to_loss.to_markdown(rows, *shape)
    texts = (markdown, time_to_loss.to_csv(rows), time_to_loss.to_latex(rows, *shape))
    records = [row.record() for row in rows]
    written = WrittenTable(time_to_loss.FILE_NAME, time_to_loss.TITLE, records, markdown, texts, [])
    return [written], times.passed_over


# By the names of files.
MAKERS: dict[str, Callable[..., Made]] = {
    "table1": _optimizers,
    "table2": _optimizers,
    "table3": _mixture,
    downstream_table.FILE_NAME: _scored,
    time_to_loss.FILE_NAME: _times,
}
