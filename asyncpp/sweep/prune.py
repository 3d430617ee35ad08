"""``prune``: what a sweep needs no longer.

Never a result: metrics, summaries and the checkpoints of unfinished runs stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncpp import records
from asyncpp.arguments import parse_arguments
from asyncpp.errors import EXIT_DONE
from asyncpp.launcher.ledger import Ledger
from asyncpp.sweep.state import LIVE, State, open_ledger, states_of
from asyncpp.trainer.checkpoint.names import CHECKPOINTS_FOLDER


@dataclass
class PruneOptions:
    """confirm: remove it; otherwise it is only listed.

    checkpoints: those of finished runs, too, which evaluation, export and longer runs would start from.
    """

    runs_dir: str = "runs"
    confirm: bool = False
    checkpoints: bool = False


def prune(name: str, arguments: Sequence[str]) -> int:
    """List what can go, with its size, and remove it where that is confirmed."""
    options = parse_arguments(arguments, PruneOptions)
    ledger = open_ledger(name, options.runs_dir)
    num_bytes = 0
    for path, reason in _dispensable(ledger, options.checkpoints):
        size = _size(path)
        num_bytes += size
        print(f"{size / 2**20:8.1f} MiB  {path}  ({reason})")
        if options.confirm:
            shutil.rmtree(path)
    print(f"{num_bytes / 2**20:8.1f} MiB {'removed' if options.confirm else 'could go; confirm=true removes it'}")
    return EXIT_DONE


def _dispensable(ledger: Ledger, checkpoints: bool) -> Iterator[tuple[Path, str]]:
    """Folders, each with the reason why it can go."""
    states, entries = states_of(ledger), ledger.entries()
    if checkpoints:
        for cell in states:
            folder = ledger.folder / cell.run / CHECKPOINTS_FOLDER
            if cell.state is State.DONE and folder.is_dir():
                yield folder, "checkpoints of a finished run"
    for cell in states:
        folder = ledger.folder / cell.run
        untouched = not (folder / records.METRICS_FILE).exists() and not (folder / CHECKPOINTS_FOLDER).exists()
        if cell.state in (State.MISSING, State.STOPPED) and untouched and folder.is_dir():
            yield folder, "made for a run that never began"
    if any(cell.state in LIVE for cell in states):
        return  # which may need the code, and Slurm's scripts
    used = {entries[cell.run].code for cell in states if cell.state is not State.DONE}
    for folder in sorted(ledger.code.glob("*")):
        if folder.name not in used:
            yield folder, "code that only finished runs used"
    if ledger.jobs.is_dir():
        yield ledger.jobs, "scripts and output of jobs that are over"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
