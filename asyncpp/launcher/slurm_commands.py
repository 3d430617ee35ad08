"""What is asked of Slurm by its own commands."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence

from asyncpp.errors import ConfigError, require

# States of squeue in which a job does not run yet, or not any more.
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")


class SlurmFailed(RuntimeError):
    """A command of Slurm did not do what it was asked for; the message is its own, on one line."""


def require_slurm(partition: str | None) -> None:
    """Raise ConfigError where there is no Slurm, or none that answers, or no such partition."""
    try:
        partitions = _run(["sinfo", "--noheader", "--format=%R"]).split()
    except SlurmFailed as error:
        raise ConfigError("hydra/launcher", "slurm", f"expected a machine from which Slurm answers: {error}") from None
    known = partition is None or partition in partitions
    accepted = f"expected one of this cluster's, which are {', '.join(dict.fromkeys(partitions))}"
    require(known, "launcher.partition", partition, accepted)


def live_jobs() -> dict[str, str]:
    """This user's jobs that wait or run: ``queued`` or ``running`` by job id, <array>_<index> in an array."""
    rows = _run(["squeue", "--me", "--array", "--noheader", "--format=%i|%T"]).splitlines()
    states = dict(row.strip().split("|", 1) for row in rows)
    return {job: "queued" if state in _WAITING else "running" for job, state in states.items()}


def ended_states(jobs: Iterable[str]) -> dict[str, str]:
    """How jobs ended, by job id, such as ``CANCELLED by 0``; empty where the cluster keeps no accounts."""
    numbers = sorted({job.partition("_")[0] for job in jobs})
    if not numbers:
        return {}
    command = [
        "sacct",
        "--noheader",
        "--allocations",
        "--parsable2",
        "--format=JobID,State",
        f"--jobs={','.join(numbers)}",
    ]
    try:
        return dict(row.split("|", 1) for row in _run(command).splitlines())
    except SlurmFailed:
        return {}


def state_of(job: str) -> str:
    """Slurm's word for the state of one live job; empty where it is not live."""
    try:
        return _run(["squeue", f"--jobs={job}", "--noheader", "--format=%T"]).strip()
    except SlurmFailed:
        return ""


def requeue(job: str) -> None:
    _run(["scontrol", "requeue", job])


def cancel(jobs: Sequence[str]) -> None:
    if jobs:
        _run(["scancel", *jobs])


def _run(command: Sequence[str]) -> str:
    """Standard output. Raises SlurmFailed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60.0).stdout
    except FileNotFoundError:
        raise SlurmFailed(f"there is no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise SlurmFailed(f"{command[0]} gave no answer in a minute") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise SlurmFailed(f"{command[0]} says: {lines[-1]}") from None
