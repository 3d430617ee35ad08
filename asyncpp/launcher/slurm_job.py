"""What Slurm runs: every task of a job starts its rank's process, and rank 0's requeues the job when it is stopped.

The training process is a child, so that a signal is heard at once whatever torch is doing: this process only waits.
USR2 (a preemption, or the time limit coming near) and TERM are passed on; the run saves its state after the update it
is at, on all ranks alike, and leaves with exit code 75. Slurm then starts the same job again, and the run goes on from
what it saved. Time-outs and preemptions are not told apart, so a short job's are not miscounted; the limit is on all
requeues together, which Slurm counts (SLURM_RESTART_COUNT), those after a node's failure included.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from asyncpp.errors import EXIT_DONE, EXIT_INTERRUPTED
from asyncpp.launcher import slurm_commands
from asyncpp.launcher.process import Process, note_death, output_file, start_cell

SIGNALS = (signal.SIGUSR2, signal.SIGTERM)


@dataclass(frozen=True)
class CellJob:
    """The run of ``folder``, a path from where the job was submitted. submitit calls this in every task."""

    folder: str
    num_threads: int
    max_num_requeues: int

    def __call__(self) -> int:
        """Returns EXIT_DONE; any other end of the run is the task's exit code."""
        folder, is_first = Path(self.folder), os.environ["SLURM_PROCID"] == "0"
        output = output_file(folder) if is_first else None  # the other ranks' words go to Slurm's own files
        exit_code, asked_to_stop = _run_child(folder, self.num_threads, output)
        if exit_code == EXIT_DONE:
            return EXIT_DONE
        if asked_to_stop or exit_code == EXIT_INTERRUPTED:
            if not is_first:
                return EXIT_DONE  # what becomes of the job is rank 0's business
            self._requeue(folder)
            exit_code = EXIT_INTERRUPTED
        elif is_first:
            note_death(folder, exit_code)
        sys.exit(exit_code if exit_code > 0 else 128 - exit_code)

    def _requeue(self, folder: Path) -> None:
        """Have Slurm end this job and start it again: whatever its processes do now, it is not over."""
        job, num_requeues = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if slurm_commands.state_of(job) != "RUNNING":
            return  # it was cancelled, or its time is over
        if num_requeues >= self.max_num_requeues:
            with output_file(folder) as output:
                text = f"error: requeued {num_requeues} times (launcher.max_num_requeues={self.max_num_requeues})\n"
                output.write(text.encode())
            return
        try:
            slurm_commands.requeue(job)
        except slurm_commands.SlurmFailed as error:
            print(f"error: not requeued: {error}", file=sys.stderr)


def _run_child(folder: Path, num_threads: int, output: IO[bytes] | None) -> tuple[int, bool]:
    """Run the training process, pass signals on to it. Returns its exit code, and whether it was asked to stop.

    Once it was, its exit code says little: a signal that comes while it starts kills it, or a rank that it waits for.
    """
    process: Process | None = None
    signals: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if process is not None:
            process.send_signal(number)

    for number in SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # which slurm_start.py has held back
    if signals:
        return EXIT_INTERRUPTED, True
    process = start_cell(folder, num_threads, {}, output)
    for number in tuple(signals):  # that came before there was a process
        process.send_signal(number)
    return process.wait(), bool(signals)
