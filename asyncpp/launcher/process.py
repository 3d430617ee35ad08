"""A cell's process, as every launcher starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from asyncpp import records
from asyncpp.arguments import STOP_SIGNALS

Process = subprocess.Popen[bytes]


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals that ask to stop reach this process at the end of the block, and no process that is started within.

    Such a process is born deaf to them, and hears them as soon as it unblocks STOP_SIGNALS.
    """
    came: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        came.append(number)

    handlers = {number: signal.signal(number, keep) for number in STOP_SIGNALS}  # other threads are not deaf
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def start_cell(folder: Path, num_threads: int, environment: Mapping[str, str], output: IO[bytes] | None) -> Process:
    """Start the run of ``folder``. output: where what it prints goes; None for where this process prints.

    A signal that comes while it imports is kept until it can say that it was interrupted.
    environment: variables in addition to this process's; those of Code.environment choose the code.
    """
    threads = {"OMP_NUM_THREADS": str(num_threads), "MKL_NUM_THREADS": str(num_threads)}
    with signals_held():
        return subprocess.Popen(
            [sys.executable, "-m", "asyncpp.launcher.run_cell", str(folder)],
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C reaches this process, which passes it on once
            env=os.environ | dict(environment) | threads,
        )


def output_file(folder: Path) -> IO[bytes]:
    """Beside the run's records, after what earlier launches printed."""
    return (folder / records.OUTPUT_FILE).open("ab")


def note_death(folder: Path, exit_code: int) -> None:
    """Where a signal killed the process, nothing says so but this line, the last one of the run's output."""
    if exit_code < 0:
        with output_file(folder) as output:
            output.write(f"\nerror: the run was killed by {signal.Signals(-exit_code).name}\n".encode())


def last_words(folder: Path) -> str:
    """Why the run in ``folder`` ended, on one line: its summary's error, or the last line that it printed."""
    summary = records.read_summary(folder) or {}
    error = str(summary.get("error") or "")
    return last_line(error) or last_line_of(folder / records.OUTPUT_FILE) or "it left no word"


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def last_line_of(path: Path) -> str:
    """The last line of a file that is not empty; empty where there is no file."""
    lines = (last_line(line.decode(errors="replace")) for line in records.lines_from_end(path))
    return next(filter(None, lines), "")
