"""Tables 1 and 2 of the paper from run folders, ours beside the paper's.

    python analysis/make_tables.py [runs=runs/demo] [out=results] [json=false]

runs: a folder that holds run folders, at any depth. out: where table1 and table2 go, each as .md, .csv and .tex.
json=true prints one JSON document in the place of the Markdown tables.
Exit codes: 0 done, 2 bad input.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

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
    if options.json:
        passed_over = [{"folder": str(entry.folder), "reason": entry.reason} for entry in loaded.passed_over]
        values = {table.file_name: {"title": table.title, "rows": table.records()} for table in tables}
        files_written = [str(file) for file in files]
        print(json.dumps(values | {"passed_over": passed_over, "files": files_written}, indent=2, allow_nan=False))
        return
    report_passed_over(loaded.passed_over)
    for table in tables:
        print(markdown_table(table))
    print(markdown_legend(tables[-1]))  # the last table's columns include the first one's
    suffixes = ",".join(suffix.removeprefix(".") for suffix in FORMATS)
    print("tables:", ", ".join(f"{options.out / table.file_name}.{{{suffixes}}}" for table in tables))
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


if __name__ == "__main__":
    sys.exit(run_command(main, TablesOptions, sys.argv[1:], __doc__))
