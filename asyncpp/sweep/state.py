"""What became of every cell of a sweep, from its ledger, its run folders, and Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from asyncpp import records
from asyncpp.errors import EXIT_INTERRUPTED, require
from asyncpp.launcher import slurm_commands
from asyncpp.launcher.ledger import CLAIM_FILE, Entry, Ledger
from asyncpp.launcher.process import last_line_of, last_words
from asyncpp.records import Status
from asyncpp.sweep.file import load_sweep, sweep_names


class State(StrEnum):
    DONE = "done"
    RUNNING = "running"
    QUEUED = "queued"
    FAILED = "failed"
    STOPPED = "stopped"  # as it was asked to, or its launch was killed; ``run`` goes on
    MISSING = "missing"  # never started


LIVE = (State.RUNNING, State.QUEUED)


@dataclass(frozen=True)
class CellState:
    """step: updates that are done. loss: validation loss when done, else the last training loss; nats a token.

    left_s: seconds that the rest takes at the last step's speed. error: one line.
    """

    run: str
    state: State
    step: int
    num_steps: int
    loss: float | None
    left_s: float | None
    job: str | None
    error: str | None


def open_ledger(name: str, runs_dir: str) -> Ledger:
    """The ledger of the sweep ``name`` (or of the file name.yaml). Raises ConfigError where none was kept."""
    folder = Path(name).stem if name.endswith(".yaml") else name
    if name in sweep_names() or Path(name).is_file():
        folder = load_sweep(name).folder_of(folder)  # another sweep's, where it shares that one's runs
    ledger = Ledger(Path(runs_dir) / folder)
    known = sorted(path.parent.parent.name for path in Path(runs_dir).glob("*/.sweep/ledger.jsonl"))
    accepted = f"expected a sweep that was run into {runs_dir}: {', '.join(known) or 'there is none'}"
    require(ledger.file.is_file(), "sweep", name, accepted)
    return ledger


def states_of(ledger: Ledger) -> list[CellState]:
    """A state for each cell, in the ledger's order. Raises SlurmFailed where Slurm has cells and does not answer."""
    entries = ledger.entries()
    open_jobs = [
        entry.job
        for entry in entries.values()
        if entry.job and entry.launcher["name"] == "slurm" and not records.is_finished(ledger.folder / entry.run)
    ]
    live = slurm_commands.live_jobs() if open_jobs else {}
    ended = slurm_commands.ended_states(job for job in open_jobs if job not in live)
    return [_state_of(ledger, entry, live, ended) for entry in entries.values()]


def _state_of(ledger: Ledger, entry: Entry, live: Mapping[str, str], ended: Mapping[str, str]) -> CellState:
    folder = ledger.folder / entry.run
    summary = records.read_summary(folder) or {}
    row = records.last_metrics_row(folder / records.METRICS_FILE, "train/loss") or {}
    step, loss = row.get("step", -1) + 1, row.get("train/loss")
    state, error = _judge(ledger, folder, entry, summary.get("status"), live, ended)
    if state is State.DONE:
        step, loss = entry.num_steps, summary.get("val_loss")
    left_s = None
    if state is State.RUNNING and row:
        left_s = row[f"{records.TIME_PREFIX}step_s"] * (entry.num_steps - step)
    return CellState(entry.run, state, step, entry.num_steps, loss, left_s, entry.job, error)


def _judge(
    ledger: Ledger,
    folder: Path,
    entry: Entry,
    status: str | None,
    live: Mapping[str, str],
    ended: Mapping[str, str],
) -> tuple[State, str | None]:
    """The state, and where a cell failed, or will not be requeued, why."""
    if status == Status.FINISHED:
        return State.DONE, None
    if entry.job is not None and entry.job in live:
        return State(live[entry.job]), None
    if records.is_locked(folder):
        return State.RUNNING, None
    if records.is_locked(folder, CLAIM_FILE):
        return State.QUEUED, None
    if status == Status.INTERRUPTED or (status is None and _was_cut_short(folder, entry)):
        words = last_line_of(folder / records.OUTPUT_FILE)
        return State.STOPPED, words if words.startswith("error:") else None  # as when it was requeued too often
    slurm = ended.get(entry.job or "", "")
    if slurm.startswith("CANCELLED"):
        return State.STOPPED, None
    if status == Status.FAILED or (folder / records.OUTPUT_FILE).is_file():
        ending = f" (Slurm: {slurm})" if slurm not in ("", "FAILED", "COMPLETED") else ""
        return State.FAILED, last_words(folder) + ending
    if entry.job and entry.launcher["name"] == "slurm":  # it failed before its process began
        words = last_line_of(ledger.jobs / f"{entry.job}_0_log.err") or "no word from the job"
        return State.FAILED, f"{words} (Slurm: {slurm or 'the job is gone'})"
    return State.MISSING, None


def _was_cut_short(folder: Path, entry: Entry) -> bool:
    """Whether a process of this machine that left no summary was stopped, or ended when its launch had been killed.

    What ends by itself while its launch looks on is a failure.
    """
    was_started = entry.launcher["name"] == "local" and (folder / records.OUTPUT_FILE).is_file()
    return was_started and entry.exit_code in (None, EXIT_INTERRUPTED)


def count(states: Iterable[CellState]) -> dict[str, int]:
    """How many cells are in each state that occurs, in the order of State."""
    found = [cell.state for cell in states]
    return {str(state): found.count(state) for state in State if state in found}
