"""Seconds that tables, figures, claims and the report take of 1,000 runs.

    python benchmarks/results_speed.py [json=true] [num_runs=1000] [runs=docs/results-tiny/runs]

The run folders are copies of ``runs`` under other seeds, until there are enough. Each command is the one that a user
types, in a process of its own; its time is the processor's, all threads together, so that other programs on the machine
hardly count. imports_s is what Python takes to import pandas, matplotlib and torch, which is a part of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from asyncpp.arguments import exit_code_of, parse_arguments
from asyncpp.errors import EXIT_DONE, require
from asyncpp.records import CONFIG_FILE, SUMMARY_FILE, find_runs

ALLOWED_S = 10.0
COMMANDS = ("make_tables", "make_figures", "claims", "make_report")
ANALYSIS = Path(__file__).parents[1] / "analysis"
SEEDS_APART = 1000  # the seeds of one copy and those of the next


@dataclass
class Options:
    num_runs: int = 1000
    runs: Path = Path("docs/results-tiny/runs")
    json: bool = False


def copy_runs(runs: Path, out: Path, num_runs: int) -> None:
    """``num_runs`` copies of the runs below ``runs``, in turn, each round of copies with seeds of its own."""
    originals = [run.folder for run in find_runs(runs)]
    for index in range(num_runs):
        round_, original = index // len(originals), originals[index % len(originals)]
        copy = out / original.relative_to(runs).parent / f"{original.name}-{round_}"
        shutil.copytree(original, copy)
        config = yaml.load((copy / CONFIG_FILE).read_bytes(), Loader=yaml.CSafeLoader)
        summary = json.loads((copy / SUMMARY_FILE).read_bytes())
        seed = summary["seed"] + SEEDS_APART * round_
        (copy / CONFIG_FILE).write_text(yaml.safe_dump(config | {"seed": seed}))
        (copy / SUMMARY_FILE).write_text(json.dumps(summary | {"seed": seed}))


def processor_seconds(command: Sequence[str]) -> float:
    """Of ``command``, waited for. Raises CalledProcessError where it fails."""
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def measure(options: Options, folder: Path) -> dict[str, float]:
    """Seconds by command."""
    copy_runs(options.runs, folder / "runs", options.num_runs)
    imports = [sys.executable, "-c", "import matplotlib.figure, pandas, torch"]
    arguments = [f"runs={folder / 'runs'}", f"out={folder / 'results'}"]
    return {
        "imports_s": processor_seconds(imports),
        **{f"{name}_s": processor_seconds([sys.executable, f"{ANALYSIS / name}.py", *arguments]) for name in COMMANDS},
    }


def run(options: Options) -> int:
    require(options.num_runs > 0, "num_runs", options.num_runs, "expected a positive number")
    there = options.runs.is_dir() and any(find_runs(options.runs))
    require(there, "runs", options.runs, "expected a folder that holds run folders")
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(options, Path(folder))
    if options.json:
        print(json.dumps(seconds, indent=2))
        return EXIT_DONE
    print(f"{options.num_runs} runs, processor seconds, {ALLOWED_S:g} allowed")
    for name, value in seconds.items():
        print(f"{name:15} {value:6.2f}")
    return EXIT_DONE


def main() -> int:
    return exit_code_of(lambda: run(parse_arguments(sys.argv[1:], Options)))


if __name__ == "__main__":
    sys.exit(main())
