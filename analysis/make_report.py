"""One page with every table, figure and claim, and where its runs come from: report.html, which opens offline.

    python analysis/make_report.py [runs=runs] [out=results] [scale=null] [num_stages=4] [num_micro_batches=4]

runs: a folder that holds run folders, at any depth: of one sweep, or of all (runs=runs). out: where report.html goes.
scale: the name of a model; null takes all that there are.
num_stages, num_micro_batches: of the pipeline whose schedules the time to a loss is compared for.
Exit codes: 0 done, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from all_tables import make_all_tables
from asyncpp.arguments import run_command
from asyncpp.records import write_atomically
from claims import judge_claims
from experiments import Missing
from figures.rendering import Rendered, render_all
from load_experiments import load_experiments
from outputs import command_of, output_folder, report_passed_over
from overhead import step_time_ratio
from report import Text, render
from rules.markdown import to_markdown

FILE_NAME = "report.html"


@dataclass
class ReportOptions:
    runs: Path = Path("runs")
    out: Path = Path("results")
    scale: str | None = None
    num_stages: int = 4
    num_micro_batches: int = 4


def main(options: ReportOptions) -> None:
    step_time_ratio(options.num_stages, options.num_micro_batches)  # refuses a bad shape before runs are read
    experiments = load_experiments(options.runs, options.scale)
    out = output_folder(options.out)
    command = command_of("make_report.py", options)
    texts = [Text("claims", "Claims", to_markdown(judge_claims(experiments), experiments, command))]
    tables = make_all_tables(experiments, options.num_stages, options.num_micro_batches)
    texts += [Text(table.file_name, table.title, table.texts[0]) for table in tables.tables]
    rendered = list(render_all(experiments, ["svg"]))
    figures = [entry for entry in rendered if isinstance(entry, Rendered)]
    left_out = [entry for figure in figures for entry in figure.passed_over]
    passed_over = experiments.passed_over + tables.passed_over + left_out
    missing = tables.not_made + [entry for entry in rendered if isinstance(entry, Missing)]
    page = render(experiments, texts, figures, missing, passed_over, command)
    write_atomically(out / FILE_NAME, page)
    report_passed_over(passed_over)
    print(f"report: {out / FILE_NAME}")


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", sys.argv[1:], ReportOptions, main))
