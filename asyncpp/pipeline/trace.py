"""What a rank did and when: every action of a run's last batches, one file a rank, for ``python -m asyncpp.trace``.

Times are seconds since 1970, told by time.perf_counter() from an offset that is taken once: so they compare between
ranks, between machines as well as those agree on the time, and nothing shows when a system clock is set. No torch here.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from asyncpp.schedule.action import Action

FOLDER = "trace"  # below the run's
RECORD = np.dtype(
    [
        ("kind", "U1"),
        ("batch", "i8"),
        ("micro_batch", "i8"),
        ("chunk", "i8"),
        ("version", "i8"),
        ("start_s", "f8"),
        ("end_s", "f8"),
    ]
)


class Trace:
    """A Watcher (asyncpp.pipeline.runtime) that keeps the actions of ``first_batch`` and of all batches after it."""

    def __init__(self, first_batch: int) -> None:
        self._first_batch = first_batch
        self._offset_s = time.time() - time.perf_counter()
        self._records: list[tuple[str, int, int, int, int, float, float]] = []

    def begin(self, action: Action) -> None:
        pass

    def end(self, action: Action, start_s: float, end_s: float) -> None:
        if action.batch >= self._first_batch:
            times = start_s + self._offset_s, end_s + self._offset_s
            self._records.append((action.kind.value, *action[1:5], *times))

    def write(self, run_folder: Path, rank: int) -> None:
        """All that was kept, in the order of the rank's list. Raises OSError."""
        path = trace_file(run_folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.array(self._records, dtype=RECORD), allow_pickle=False)


def trace_file(run_folder: Path, rank: int) -> Path:
    return run_folder / FOLDER / f"rank-{rank}.npy"


def read_trace(run_folder: Path, rank: int) -> np.ndarray:
    """RECORDs in the order in which the rank did them. Raises OSError, or ValueError for a file that is not one."""
    records = np.load(trace_file(run_folder, rank), allow_pickle=False)
    if records.dtype != RECORD or records.ndim != 1:
        raise ValueError(f"{trace_file(run_folder, rank)} does not hold records of actions")
    return records
