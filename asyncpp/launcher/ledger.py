"""A sweep's ledger: a line for every cell that it has, and one for every time that a cell is started, or has ended.

<runs_dir>/<sweep>/.sweep/
    ledger.jsonl    lines are only added; the last one of a cell counts
    code/           copies of the code (freeze.py)
    jobs/           what submitit writes: scripts, Slurm's output
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asyncpp.launcher.cell import Cell
from asyncpp.launcher.freeze import Code

SWEEP_FOLDER = ".sweep"
CLAIM_FILE = ".claim"  # in a run folder: held by the process that is to start it, or has


@dataclass(frozen=True)
class Entry:
    """run: the folder's name, below the sweep's. launcher: its values. commit, code: what the cell runs.

    job: Slurm's id, or <host>:<process id> of what starts it here; None: it was planned, and nothing started yet.
    exit_code: of its process, minus the signal that killed it. None: it has not ended, or its launch ended before it
    did, or it is Slurm's, whose accounts tell.
    """

    run: str
    overrides: list[str]
    num_steps: int
    launcher: dict[str, Any]
    commit: str
    code: str
    job: str | None = None
    exit_code: int | None = None
    time: str = ""

    @classmethod
    def of(cls, cell: Cell, code: Code) -> Entry:
        launcher = asdict(cell.launcher)
        steps = cell.config.trainer.num_steps
        return cls(cell.folder.name, list(cell.overrides), steps, launcher, code.commit, code.folder.name)

    def started_as(self, job: str) -> Entry:
        return replace(self, job=job)

    def ended_with(self, exit_code: int) -> Entry:
        return replace(self, exit_code=exit_code)


class Ledger:
    """The ledger of the sweep in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder / SWEEP_FOLDER
        self.file = self.place / "ledger.jsonl"

    @property
    def code(self) -> Path:
        return self.place / "code"

    @property
    def jobs(self) -> Path:
        return self.place / "jobs"

    def entries(self) -> dict[str, Entry]:
        """The last entry of every run, in the order in which the runs were first planned."""
        try:
            text = self.file.read_bytes()
        except FileNotFoundError:
            return {}
        entries: dict[str, Entry] = {}
        for line in text.splitlines():
            with suppress(ValueError, TypeError):  # a line whose writer is at it, or died over it
                entry = Entry(**json.loads(line))
                entries[entry.run] = entry
        return entries

    def add(self, entries: Iterable[Entry]) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        lines = "".join(json.dumps(asdict(replace(entry, time=now))) + "\n" for entry in entries)
        self.place.mkdir(parents=True, exist_ok=True)
        with self.file.open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                lines = lines if file.read() == b"\n" else f"\n{lines}"
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


def this_process() -> str:
    """What a ledger says of cells that this process starts."""
    return f"{socket.gethostname()}:{os.getpid()}"
