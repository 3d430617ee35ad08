"""Every figure from run folders: those of which there are runs, the schedules' timelines and the theory.

    python analysis/make_figures.py [runs=runs] [out=results] [scale=null] [json=false]

runs: a folder that holds run folders, at any depth: of one sweep, or of all (runs=runs). It takes one run that counts,
also for the timelines and the theory, which are made of none.
out: where each figure goes, as PNG and as SVG, and what it draws of runs as CSV, a row a run: losses and gaps in nats
per token, a row a step for the loss over steps and a row a measurement for the probes.
scale: the name of a model; null takes all that there are.
json=true prints one JSON document: figures with their files, and what is missing with the command that makes it.
Exit codes: 0 done, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from asyncpp.arguments import run_command
from asyncpp.records import write_atomically
from experiments import Missing
from figures.rendering import render_all
from load_experiments import load_experiments
from outputs import output_folder, report_passed_over

FORMATS = ("png", "svg")


@dataclass
class FiguresOptions:
    runs: Path = Path("runs")
    out: Path = Path("results")
    scale: str | None = None
    json: bool = False


def main(options: FiguresOptions) -> None:
    experiments = load_experiments(options.runs, options.scale)
    out = output_folder(options.out)
    figures, missing, passed_over = [], [], list(experiments.passed_over)
    for entry in render_all(experiments, FORMATS):
        if isinstance(entry, Missing):
            missing.append(entry)
            continue
        contents = entry.images | ({} if entry.csv is None else {"csv": entry.csv})
        files = {out / f"{entry.name}.{format_}": content for format_, content in contents.items()}
        for file, content in files.items():
            write_atomically(file, content)
        written = [str(file) for file in files]
        figures.append({"name": entry.name, "title": entry.title, "caption": entry.caption, "files": written})
        passed_over += entry.passed_over
    if options.json:
        document = {
            "figures": figures,
            "missing": [asdict(entry) for entry in missing],
            "passed_over": [entry.as_dict() for entry in passed_over],
        }
        print(json.dumps(document, indent=2, allow_nan=False))
        return
    report_passed_over(passed_over)
    for figure in figures:
        print(f"figure: {', '.join(figure['files'])}")
    for entry in missing:
        print(f"not drawn: {entry.title}: {entry.reason}; {entry.command}")


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", sys.argv[1:], FiguresOptions, main))
