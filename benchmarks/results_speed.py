"""Seconds that tables, figures, claims and the report take of 1,000 runs.

    python benchmarks/results_speed.py [json=true] [num_runs=1000] [runs=docs/results-tiny/runs]

The run folders are copies of ``runs`` under other seeds, until there are enough. Each command is the one that a user
types, in a process of its own. Its seconds are the clock's, for an idle machine, and the processor's, all processes
together, so that other programs hardly count. imports is what Python takes to import pandas, matplotlib and torch: a
part of each. Ten seconds are allowed for a command.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from asyncpp.errors import check_count, require
from asyncpp.records import CONFIG_FILE, METRICS_FILE, SUMMARY_FILE, find_runs
from common.command import run_benchmark

COMMANDS = ("make_tables", "make_figures", "claims", "make_report")
ANALYSIS = Path(__file__).parents[1] / "analysis"
SEEDS_APART = 1000  # the seeds of one copy and those of the next
LOSSES_APART = 1e-6  # nats per token


@dataclass
class Options:
    num_runs: int = 1000
    runs: Path = Path("docs/results-tiny/runs")
    json: bool = False


def copy_runs(runs: Path, out: Path, num_runs: int) -> None:
    """``num_runs`` copies of the runs below ``runs``, in turn, each round of copies with seeds and losses of its own:
    seeds that change nothing would count as one."""
    originals = [run.folder for run in find_runs(runs)]
    for index in range(num_runs):
        round_, original = index // len(originals), originals[index % len(originals)]
        copy = out / original.relative_to(runs).parent / f"{original.name}-{round_}"
        shutil.copytree(original, copy)
        config = yaml.load((copy / CONFIG_FILE).read_bytes(), Loader=yaml.CSafeLoader)
        summary = json.loads((copy / SUMMARY_FILE).read_bytes())
        seed = summary["seed"] + SEEDS_APART * round_
        losses = {key: summary[key] + LOSSES_APART * round_ for key in ("val_loss", "val_loss_z") if summary.get(key)}
        rows = [json.loads(line) for line in (copy / METRICS_FILE).read_text().splitlines()]
        for row in rows:
            row |= {key: value + LOSSES_APART * round_ for key, value in row.items() if key.startswith("val/loss")}
        (copy / CONFIG_FILE).write_text(yaml.safe_dump(config | {"seed": seed}))
        (copy / METRICS_FILE).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (copy / SUMMARY_FILE).write_text(json.dumps(summary | losses | {"seed": seed}))


@dataclass(frozen=True)
class Duration:
    """In seconds."""

    clock_s: float
    processor_s: float


def duration_of(command: Sequence[str]) -> Duration:
    """Of ``command``, waited for. Raises CalledProcessError where it fails."""
    before, start_s = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after, end_s = os.times(), time.perf_counter()
    processor_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Duration(end_s - start_s, processor_s)


def measure_commands(options: Options, folder: Path) -> dict[str, Duration]:
    """By command."""
    copy_runs(options.runs, folder / "runs", options.num_runs)
    imports = [sys.executable, "-c", "import matplotlib.figure, pandas, torch"]
    arguments = [f"runs={folder / 'runs'}", f"out={folder / 'results'}"]
    return {
        "imports": duration_of(imports),
        **{name: duration_of([sys.executable, f"{ANALYSIS / name}.py", *arguments]) for name in COMMANDS},
    }


def measure(options: Options) -> dict[str, dict[str, float]]:
    check_count("num_runs", options.num_runs)
    there = options.runs.is_dir() and any(find_runs(options.runs))
    require(there, "runs", options.runs, "expected a folder that holds run folders")
    with tempfile.TemporaryDirectory() as folder:
        durations = measure_commands(options, Path(folder))
    return {name: asdict(duration) for name, duration in durations.items()}


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
