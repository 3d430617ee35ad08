"""Tables 1 to 4 of the paper from run folders, ours beside the paper's, and what asynchrony buys in time.

    python analysis/make_tables.py [runs=runs] [out=results] [scale=null] [json=false]
                                   [num_stages=4] [num_micro_batches=4]

runs: a folder that holds run folders, at any depth: of one sweep, or of all (runs=runs).
out: where table1, table2, table3 (mixture of experts), table4 (of runs that eval/run.py has scored) and time_to_loss
go, each as .md, .csv and .tex; those of which there are runs.
scale: the name of a model; null takes all that there are. num_stages, num_micro_batches: of the pipeline whose
schedules time_to_loss compares.
json=true prints one JSON document in the place of the Markdown tables.
Exit codes: 0 done, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from all_tables import SUFFIXES, WrittenTable, make_all_tables
from asyncpp.arguments import run_command
from asyncpp.errors import require
from asyncpp.records import write_atomically
from experiments import EXPERIMENTS
from labels import LOSS_CURVES
from load_experiments import load_experiments
from outputs import not_counted, output_folder, report_passed_over
from overhead import step_time_ratio
from runs import PassedOver
from table_text import wrapped


@dataclass
class TablesOptions:
    runs: Path = Path("runs")
    out: Path = Path("results")
    scale: str | None = None
    num_stages: int = 4
    num_micro_batches: int = 4
    json: bool = False


def main(options: TablesOptions) -> None:
    step_time_ratio(options.num_stages, options.num_micro_batches)  # refuses a bad shape before runs are read
    experiments = load_experiments(options.runs, options.scale)
    made = make_all_tables(experiments, options.num_stages, options.num_micro_batches)
    tables, passed_over = made.tables, experiments.passed_over + made.passed_over
    accepted = "expected runs with a delay of zero or one update and the correction none or ef, or scored runs"
    there = ", ".join(EXPERIMENTS[name].makes for name, frames in experiments.frames.items() if frames)
    found = f"found runs of {there}, for analysis/make_figures.py and analysis/claims.py"
    require(bool(tables), "runs", options.runs, f"{accepted}, of a sweep that a table is made of; {found}")
    files = write(tables, passed_over, output_folder(options.out))
    if options.json:
        values: dict[str, Any] = {
            table.file_name: {"title": table.title, "rows": table.records, "missing": table.missing} for table in tables
        }
        values["passed_over"] = [entry.as_dict() for entry in passed_over]
        values |= {"not_made": [asdict(entry) for entry in made.not_made], "files": [str(file) for file in files]}
        print(json.dumps(values, indent=2, allow_nan=False))
        return
    report_passed_over(passed_over)
    for table in tables:
        print(table.printed)
    suffixes = ",".join(suffix.removeprefix(".") for suffix in SUFFIXES)
    names = ", ".join(f"{options.out / table.file_name}.{{{suffixes}}}" for table in tables)
    print("tables:", names)
    for entry in made.not_made:
        print(f"not made: {entry.title}: {entry.reason}; {entry.command}")
    figure = options.out / f"{LOSS_CURVES}.png"
    command = f"python analysis/make_figures.py runs={options.runs} out={options.out}"
    print("figure:", figure if figure.is_file() else command)


def write(tables: list[WrittenTable], passed_over: list[PassedOver], out: Path) -> list[Path]:
    """Write every table in every form below ``out``, as Markdown with what was passed over. Returns the paths."""
    files = []
    left_out = "".join(f"{line}\n" for line in wrapped(not_counted(passed_over)))
    for table in tables:
        for suffix, text in zip(SUFFIXES, table.texts, strict=True):
            files.append(out / f"{table.file_name}{suffix}")
            write_atomically(files[-1], text + left_out if suffix == ".md" else text)
    return files


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", sys.argv[1:], TablesOptions, main))
