"""What a sweep costs a cell beyond its training, beside the start of Python with torch.

    python benchmarks/sweep_overhead.py [json=true] [num_cells=4] [launcher=slurm]

Cells run one after another, by the same command as any sweep. A cell's training is the sum of its steps' times; all the
rest of the command's time is overhead: composing and checking, freezing code and configuration, starting processes or
jobs, imports, data, building the model, the last validation, the checkpoint, records. The starts of Python with torch
are measured before and after, and the lower median counts. With launcher=slurm (a cluster that is up) a job's wait in
the queue counts, too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from asyncpp import records
from asyncpp.errors import check_count
from common.command import run_benchmark

ALLOWED_S = 1.0  # beyond Python and torch


@dataclass
class Options:
    num_cells: int = 4
    num_steps: int = 20
    launcher: str = "local"
    json: bool = False


def sweep_file(num_cells: int, num_steps: int, data_root: Path) -> str:
    scale = {"trainer.num_steps": num_steps, "trainer.eval_every": None, "data.num_validation_sequences": 8}
    file = {"claim": "none", "paper": "none", "seeds": list(range(num_cells))}
    return json.dumps(file | {"scales": {"tiny": scale | {"data.root": str(data_root)}}})


def seconds_of(command: list[str], folder: Path) -> float:
    start_s = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start_s


def training_seconds(run: Path) -> float:
    rows = records.read_metrics(run / records.METRICS_FILE)
    return sum(row["time/step_s"] for row in rows if "time/step_s" in row)


def measure_cells(options: Options, folder: Path) -> dict[str, float]:
    """Seconds a cell."""
    python = [sys.executable, "-c", "import torch"]
    data_root = folder / "data"
    seconds_of([sys.executable, "-m", "asyncpp.data.prepare", "data=sotu", f"data.root={data_root}"], folder)
    (folder / "cells.yaml").write_text(sweep_file(options.num_cells, options.num_steps, data_root))
    sweep = [sys.executable, "-m", "asyncpp.sweep", "run", "cells.yaml", "num_parallel=1"]
    if options.launcher != "local":
        sweep += [f"launcher={options.launcher}", "launcher.wait=true"]
    starts = [seconds_of(python, folder) for _ in range(3)]
    sweep_s = seconds_of(sweep, folder)
    starts += [seconds_of(python, folder) for _ in range(3)]
    training = [training_seconds(run.folder) for run in records.find_runs(folder / "runs")]
    overhead_s = (sweep_s - sum(training)) / options.num_cells
    start_s = statistics.median_low(starts)
    return {
        "training_s": statistics.mean(training),
        "overhead_s": overhead_s,
        "python_and_torch_s": start_s,
        "overhead_beyond_start_s": overhead_s - start_s,
        "allowed_beyond_start_s": ALLOWED_S,
    }


def measure(options: Options) -> dict[str, float]:
    check_count("num_cells", options.num_cells)
    with tempfile.TemporaryDirectory() as folder:
        return measure_cells(options, Path(folder))


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
