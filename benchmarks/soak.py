"""Does a long run leak? A pipeline of real processes for some minutes, with memory and files of every rank watched.

    python benchmarks/soak.py [json=true] [minutes=10] [num_stages=4]

2BW trains a tiny model through the program that users start, validations and records included, until it is asked to
stop. Memory is a rank's anonymous resident memory, since pages of the mapped token file count in no leak. What was
held in the last quarter of the time is compared with the second quarter, medians of samples both. Exit code 1 where
something grew, or a batch's staleness was not 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from asyncpp import records
from asyncpp.errors import EXIT_INTERRUPTED, check_positive, require
from common.command import run_benchmark

NUM_SAMPLES = 120
START_S, STOP_S = 120.0, 60.0  # until the first step, tokens prepared, and from the signal to the end
MEMORY_GROWTH_FRACTION = 0.01  # of what the rank held; malloc's own ups and downs stay below that
MODEL = ("model.hidden_size=24", "model.ffn_size=32", "model.num_heads=3", "model.num_kv_heads=3")


@dataclass
class Options:
    minutes: float = 10.0
    num_stages: int = 4
    json: bool = False


class Sample(NamedTuple):
    """Of a process. memory_bytes: anonymous and resident."""

    memory_bytes: int
    num_files: int
    num_threads: int


class Run:
    """Training as users start it, in ``folder``."""

    def __init__(self, folder: Path, num_stages: int) -> None:
        self.folder = folder
        sizes = (f"pipeline.num_stages={num_stages}", f"trainer.num_micro_batches={num_stages}")
        command = [
            *(sys.executable, "-m", "asyncpp.train", "pipeline=2bw", *sizes, f"model.num_layers={num_stages}", *MODEL),
            *("trainer.num_steps=1000000000", "trainer.eval_every=200", "lr_schedule=constant"),
            "trainer.checkpoint_every=10",  # after the first ones malloc has settled
            *("data.num_validation_sequences=8", "data.sequence_length=16", f"data.root={folder / 'data'}"),
        ]
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(command, cwd=folder, stdout=self.log, stderr=subprocess.STDOUT)

    def steps(self) -> list[dict[str, Any]]:
        """The rows of all steps so far, without the last, which may be half written."""
        files: list[Path] = []
        with contextlib.suppress(FileNotFoundError):  # where it may write, a run finds out by a folder for a moment
            files = list(self.folder.glob(f"runs/*/*/{records.METRICS_FILE}"))
        rows = [json.loads(line) for line in files[0].read_text().splitlines()[:-1]] if files else []
        return [row for row in rows if "train/loss" in row]

    def wait_for_steps(self) -> None:
        deadline_s = time.monotonic() + START_S
        while not self.steps():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the run does not come to its steps: {self.said()}")
            time.sleep(0.5)

    def ranks(self) -> list[int]:
        """Process numbers: the children of the fork server, which is this run's child."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue  # has ended meanwhile
        return sorted(number for number, parent in parents.items() if parents.get(parent) == self.process.pid)

    def stop(self) -> int:
        """Ask for the end, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(STOP_S)
        finally:
            self.process.kill()

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:]


def sample(process: int) -> Sample:
    folder = Path("/proc") / str(process)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    memory = 1024 * int(status["RssAnon"].split()[0])
    return Sample(memory, len(list((folder / "fd").iterdir())), int(status["Threads"]))


def by_quarter(samples: list[Sample]) -> dict[str, list[float]]:
    """Medians of a rank's samples in each quarter of the time, by what was sampled."""
    size = len(samples) // 4
    quarters = [samples[number * size : (number + 1) * size] for number in range(4)]
    return {name: [statistics.median(getattr(s, name) for s in q) for q in quarters] for name in Sample._fields}


def soak(folder: Path, options: Options) -> dict[str, Any]:
    run = Run(folder, options.num_stages)
    try:
        run.wait_for_steps()
        ranks = run.ranks()
        assert len(ranks) == options.num_stages
        samples: list[list[Sample]] = [[] for _ in ranks]
        begin_s, num_before = time.monotonic(), len(run.steps())
        for number in range(1, NUM_SAMPLES + 1):
            time.sleep(max(begin_s + 60.0 * options.minutes * number / NUM_SAMPLES - time.monotonic(), 0.0))
            require_alive(run)
            for own, process in zip(samples, ranks, strict=True):
                own.append(sample(process))
        steps = run.steps()
        exit_code = run.stop()
    finally:
        run.process.kill()
    by_rank = [by_quarter(own) for own in samples]
    staleness = sorted({row["pipeline/staleness_updates"] for row in steps[1:]})  # the first batch has none
    return {
        "minutes": options.minutes,
        "num_batches": len(steps) - num_before,
        "staleness_updates": staleness,
        "exit_code": exit_code,
        "quarters_by_rank": by_rank,
        "load_average": os.getloadavg()[0],
        "holds": staleness == [1] and exit_code == EXIT_INTERRUPTED and all(map(stays, by_rank)),
    }


def require_alive(run: Run) -> None:
    if run.process.poll() is not None:
        raise RuntimeError(f"the run ended: {run.said()}")


def stays(quarters: dict[str, list[float]]) -> bool:
    """Whether a rank held no more in the last quarter than in the second."""
    grown = {name: values[-1] - values[1] for name, values in quarters.items()}
    memory = grown["memory_bytes"] <= MEMORY_GROWTH_FRACTION * quarters["memory_bytes"][1]
    return memory and grown["num_files"] <= 0 and grown["num_threads"] <= 0


def measure(options: Options) -> dict[str, Any]:
    check_positive("minutes", options.minutes)
    require(options.num_stages >= 2, "num_stages", options.num_stages, "expected 2 or more")
    with tempfile.TemporaryDirectory() as folder:
        return soak(Path(folder), options)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure))
