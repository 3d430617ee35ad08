"""Tables 1 and 2 of the paper from run folders, ours beside the paper's, and Table 4 where runs were scored.

    python analysis/make_tables.py [runs=runs/demo] [out=results] [json=false]

runs: a folder that holds run folders, at any depth. out: where table1, table2 and table4 (of runs that eval/run.py
has scored) go, each as .md, .csv and .tex.
json=true prints one JSON document in the place of the Markdown tables.
Exit codes: 0 done, 2 bad input.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import downstream
from asyncpp.errors import require
from asyncpp.records import write_atomically
from command_line import output_folder, report_passed_over, run_command
from labels import LOSS_CURVES
from runs import load_runs
from table_formats import markdown_legend, markdown_table, to_csv, to_latex, to_markdown
from tables import Table, make_tables

FORMATS = {".md": to_markdown, ".csv": to_csv, ".tex": to_latex}


@dataclass
class TablesOptions:
    runs: Path = Path("runs/demo")
    out: Path = Path("results")
    json: bool = False


def main(options: TablesOptions) -> None:
    loaded = load_runs(options.runs)
    tables = make_tables(loaded.frame)
    accepted = "expected runs with a delay of zero or one update and the correction none or ef"
    require(bool(tables[0].rows), "runs", options.runs, accepted)
    files = write(tables, output_folder(options.out))
    downstream_rows = downstream.make_rows(loaded.frame)
    if downstream_rows:
        files += write_downstream(downstream_rows, options.out)
    if options.json:
        passed_over = [{"folder": str(entry.folder), "reason": entry.reason} for entry in loaded.passed_over]
        values = {table.file_name: {"title": table.title, "rows": table.records()} for table in tables}
        if downstream_rows:
            rows = [row.record() for row in downstream_rows]
            values[downstream.FILE_NAME] = {"title": downstream.TITLE, "rows": rows}
        files_written = [str(file) for file in files]
        print(json.dumps(values | {"passed_over": passed_over, "files": files_written}, indent=2, allow_nan=False))
        return
    report_passed_over(loaded.passed_over)
    for table in tables:
        print(markdown_table(table))
    print(markdown_legend(tables[-1]))  # the last table's columns include the first one's
    if downstream_rows:
        print(downstream.to_markdown(downstream_rows))
    suffixes = ",".join(suffix.removeprefix(".") for suffix in FORMATS)
    names = dict.fromkeys(file.stem for file in files)
    print("tables:", ", ".join(f"{options.out / name}.{{{suffixes}}}" for name in names))
    figure = options.out / f"{LOSS_CURVES}.png"
    command = f"python analysis/make_figures.py runs={options.runs} out={options.out}"
    print("figure:", figure if figure.is_file() else command)


def write(tables: list[Table], out: Path) -> list[Path]:
    """Write every table in every format below ``out``. Returns the paths."""
    files = []
    for table in tables:
        for suffix, text_of in FORMATS.items():
            files.append(out / f"{table.file_name}{suffix}")
            write_atomically(files[-1], text_of(table))
    return files


def write_downstream(rows: list[downstream.Row], out: Path) -> list[Path]:
    """Write Table 4 in every format below ``out``. Returns the paths."""
    texts = {
        ".md": downstream.to_markdown(rows),
        ".csv": downstream.to_csv(rows),
        ".tex": downstream.to_latex(rows),
    }
    for suffix, text in texts.items():
        write_atomically(out / f"{downstream.FILE_NAME}{suffix}", text)
    return [out / f"{downstream.FILE_NAME}{suffix}" for suffix in texts]


if __name__ == "__main__":
    sys.exit(run_command(main, TablesOptions, sys.argv[1:], __doc__))
