"""Sweeps of very small models on the Slurm that cluster.sh brings up, and what they come to without it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncpp import records
from asyncpp.launcher.ledger import Ledger

SMALL = {
    "model.hidden_size": 24,
    "model.num_heads": 3,
    "model.ffn_size": 32,
    "data.sequence_length": 64,
    "data.num_validation_sequences": 8,
    "trainer.eval_every": None,
    "trainer.num_micro_batches": 4,
}
PATIENCE_S = 600.0  # for a machine that others use, too


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """The first true value of ``condition``."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"gave up waiting for {what}"
        time.sleep(0.2)
    return value


def queue(name: str) -> list[str]:
    """The ids of the jobs that Slurm has of a name: a sweep's."""
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


class Place:
    """A folder to launch sweeps from. Reference runs are those of the same cells on this machine, without Slurm."""

    def __init__(self, folder: Path, data_root: str) -> None:
        self.folder = folder
        self._shared = SMALL | {"data.root": data_root}

    def write(self, name: str, cells: list[dict[str, Any]], **scale: Any) -> None:
        file = {"claim": "none", "paper": "none", "seeds": [0], "cells": cells}
        values = self._shared | {key.replace("__", "."): value for key, value in scale.items()}
        (self.folder / f"{name}.yaml").write_text(json.dumps(file | {"scales": {"tiny": values}}))

    def python(self, *arguments: str, exit_code: int = 0) -> str:
        """Standard output of a command of asyncpp."""
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=2 * PATIENCE_S)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout

    def run(self, name: str, *arguments: str, exit_code: int = 0) -> None:
        self.python("asyncpp.sweep", "run", f"{name}.yaml", "launcher=slurm", *arguments, exit_code=exit_code)

    def status(self, name: str) -> dict[str, dict[str, Any]]:
        """Cells by run. A cell that failed makes the exit code 1."""
        command = [sys.executable, "-m", "asyncpp.sweep", "status", name, "json=true"]
        report = json.loads(subprocess.run(command, cwd=self.folder, capture_output=True, text=True).stdout)
        failed = any(cell["state"] == "failed" for cell in report["cells"])
        self.python("asyncpp.sweep", "status", name, exit_code=int(failed))
        return {cell["run"]: cell for cell in report["cells"]}

    def folders(self, name: str) -> list[Path]:
        """In the order of the sweep's cells."""
        folder = self.folder / "runs" / name
        return [folder / run for run in Ledger(folder).entries()]

    def jobs(self, name: str) -> list[str | None]:
        return [entry.job for entry in Ledger(self.folder / "runs" / name).entries().values()]

    def num_steps(self, folder: Path) -> int:
        row = records.last_metrics_row(folder / records.METRICS_FILE, "train/loss")
        return 0 if row is None else row["step"] + 1

    def wait_for_end(self, name: str) -> None:
        wait_until(lambda: not queue(name), f"the end of {name}'s jobs")

    def check_against_reference(self, name: str) -> None:
        """Every run of the sweep is finished, and its losses are those of a local run to the last bit."""
        self.python("asyncpp.sweep", "run", f"{name}.yaml", "runs_dir=reference", "num_parallel=2")
        for folder in self.folders(name):
            reference = self.folder / "reference" / name / folder.name
            assert results(folder) == results(reference)
            assert records.is_finished(folder)


def results(folder: Path) -> tuple[Any, ...]:
    """All that a run says of itself, but for times."""
    summary = records.read_summary(folder) or {}
    rows = [
        {key: value for key, value in row.items() if not key.startswith(records.TIME_PREFIX)}
        for row in records.read_metrics(folder / records.METRICS_FILE)
    ]
    return summary.get("status"), summary.get("val_loss"), summary.get("config_hash"), rows


def processes_in(folder: Path) -> list[int]:
    """Processes whose working directory is ``folder``."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            is_there = link.readlink() == folder
        except OSError:
            continue  # it has ended, or is a zombie
        if is_there:
            found.append(int(link.parent.name))
    return found
