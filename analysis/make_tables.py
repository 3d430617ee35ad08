"""Tables 1 to 4 of the paper from run folders, ours beside the paper's, and what asynchrony buys in time.

    python analysis/make_tables.py [runs=runs] [out=results] [scale=null] [json=false]
                                   [num_stages=4] [num_micro_batches=4]

runs: a folder that holds run folders, at any depth: of one sweep, or of all (runs=runs).
out: where table1, table2, table3 (mixture of experts), table4 (of runs that eval/run.py has scored) and time_to_loss
go, each as .md, .csv and .tex; those of which there are runs.
scale: the name of a model; null takes all that there are. num_stages, num_micro_batches: of the pipeline whose
schedules time_to_loss compares.
json=true prints one JSON document in the place of the Markdown tables.
Exit codes: 0 done, 2 bad input.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import downstream
import time_to_loss
from asyncpp.errors import require
from asyncpp.records import write_atomically
from command_line import output_folder, report_passed_over, run_command
from experiments import Experiments, load_experiments
from labels import LOSS_CURVES
from overhead import step_time_ratio
from runs import PassedOver
from table_formats import markdown_legend, markdown_missing, markdown_table, to_csv, to_latex, to_markdown
from tables import make_tables, not_made

SUFFIXES = (".md", ".csv", ".tex")


@dataclass
class TablesOptions:
    runs: Path = Path("runs")
    out: Path = Path("results")
    scale: str | None = None
    num_stages: int = 4
    num_micro_batches: int = 4
    json: bool = False


@dataclass(frozen=True)
class Document:
    """One table in every form. printed: what a terminal shows of it. texts: the files' contents, in SUFFIXES' order.

    missing: what has no runs yet, with the command that makes it. passed_over: runs that count elsewhere, but not here.
    """

    file_name: str
    title: str
    records: list[dict[str, Any]]
    printed: str
    texts: tuple[str, str, str]
    missing: list[str]
    passed_over: list[PassedOver] = field(default_factory=list)


def main(options: TablesOptions) -> None:
    step_time_ratio(options.num_stages, options.num_micro_batches)  # refuses a bad shape before runs are read
    experiments = load_experiments(options.runs, options.scale)
    documents = make_documents(experiments, options.num_stages, options.num_micro_batches)
    passed_over = experiments.passed_over + [entry for document in documents for entry in document.passed_over]
    accepted = "expected runs with a delay of zero or one update and the correction none or ef, or scored runs"
    require(bool(documents), "runs", options.runs, accepted)
    files = write(documents, output_folder(options.out))
    not_there = not_made(experiments, (document.file_name for document in documents))
    if options.json:
        values: dict[str, Any] = {
            document.file_name: {"title": document.title, "rows": document.records, "missing": document.missing}
            for document in documents
        }
        values["passed_over"] = [entry.as_dict() for entry in passed_over]
        values |= {"not_made": [asdict(entry) for entry in not_there], "files": [str(file) for file in files]}
        print(json.dumps(values, indent=2, allow_nan=False))
        return
    report_passed_over(passed_over)
    for document in documents:
        print(document.printed)
    suffixes = ",".join(suffix.removeprefix(".") for suffix in SUFFIXES)
    names = ", ".join(f"{options.out / document.file_name}.{{{suffixes}}}" for document in documents)
    print("tables:", names)
    for entry in not_there:
        print(f"not made: {entry.title}: {entry.reason}; {entry.command}")
    figure = options.out / f"{LOSS_CURVES}.png"
    command = f"python analysis/make_figures.py runs={options.runs} out={options.out}"
    print("figure:", figure if figure.is_file() else command)


def make_documents(experiments: Experiments, num_stages: int, num_micro_batches: int) -> list[Document]:
    """Every table of which there are runs, in the paper's order, and the time to a loss.

    num_stages, num_micro_batches: of the pipeline whose schedules are compared.
    """
    documents = []
    tables = make_tables(experiments)
    for index, table in enumerate(tables):
        # Table 2 is of Table 1's runs, and its columns include them: one legend serves both
        has_legend = all(other.settings != table.settings for other in tables[index + 1 :])
        legend = f"\n{markdown_legend(table)}" if has_legend else ""
        printed = f"{markdown_table(table)}{legend}{markdown_missing(table)}"
        texts = (to_markdown(table), to_csv(table), to_latex(table))
        documents.append(Document(table.file_name, table.title, table.records(), printed, texts, table.missing))
    documents += _scored(experiments)
    frames = [*experiments.frames["optimizers"].values(), *experiments.frames["moe"].values()]
    times = time_to_loss.compare_times(frames, num_stages, num_micro_batches)
    rows = times.rows
    if rows:
        shape = num_stages, num_micro_batches
        markdown = time_to_loss.to_markdown(rows, *shape)
        texts = (markdown, time_to_loss.to_csv(rows), time_to_loss.to_latex(rows, *shape))
        records = [row.record() for row in rows]
        name, title = time_to_loss.FILE_NAME, time_to_loss.TITLE
        documents.append(Document(name, title, records, markdown, texts, [], times.passed_over))
    return documents


def _scored(experiments: Experiments) -> list[Document]:
    """Table 4, one for each scale that has scored runs; with several its file is named after the scale, too."""
    frames = [
        (model, frame)
        for name in ("downstream", "moe", "optimizers")
        for model, frame in experiments.frames[name].items()
    ]
    tables: dict[str, downstream.Table] = {}
    for model, frame in frames:
        table = downstream.make_table(frame)
        if table:
            tables.setdefault(model, table)  # of a scale, Table 4's own runs before those of the other tables
    documents = []
    for model, table in tables.items():
        name = downstream.FILE_NAME if len(tables) == 1 else f"{downstream.FILE_NAME}-{model}"
        texts = (downstream.to_markdown(table), downstream.to_csv(table), downstream.to_latex(table))
        documents.append(Document(name, downstream.TITLE, table.records(), texts[0], texts, table.missing))
    return documents


def write(documents: list[Document], out: Path) -> list[Path]:
    """Write every table in every form below ``out``. Returns the paths."""
    files = []
    for document in documents:
        for suffix, text in zip(SUFFIXES, document.texts, strict=True):
            files.append(out / f"{document.file_name}{suffix}")
            write_atomically(files[-1], text)
    return files


if __name__ == "__main__":
    sys.exit(run_command(main, TablesOptions, sys.argv[1:], __doc__))
