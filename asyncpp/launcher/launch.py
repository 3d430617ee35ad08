"""Starts cells: those that are not finished, and that no other launch has."""

from __future__ import annotations

import shlex
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from asyncpp import records
from asyncpp.data.availability import require_available
from asyncpp.errors import EXIT_DONE, EXIT_FAILED
from asyncpp.launcher import slurm_commands
from asyncpp.launcher.cell import Cell
from asyncpp.launcher.config import SlurmConfig
from asyncpp.launcher.freeze import Code, freeze_code, freeze_config
from asyncpp.launcher.ledger import CLAIM_FILE, Entry, Ledger, this_process
from asyncpp.launcher.local import run_cells


class CellsNotDone(Exception):
    """A launch that did not finish every cell. exit_code: of the command."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


def launch(cells: Sequence[Cell]) -> int:
    """Start every cell that is missing. Returns EXIT_DONE where they are finished, or Slurm has them.

    Raises ConfigError before anything is started or written, SlurmFailed where Slurm refuses a cell.
    """
    by_sweep: dict[Path, dict[Path, Cell]] = defaultdict(dict)
    for cell in cells:
        by_sweep[cell.sweep_folder].setdefault(cell.folder, cell)  # values can come to the same run
    missing = [cell for own in by_sweep.values() for cell in own.values() if not records.is_finished(cell.folder)]
    for folder, own in by_sweep.items():
        num_finished = len(own) - sum(cell.folder in own for cell in missing)
        print(f"{folder.name}: {len(own)} runs, {num_finished} finished before", flush=True)
    if not missing:
        return EXIT_DONE
    for cell in missing:
        require_available(cell.config.data, cell.config.num_tokens)
        records.require_writable(cell.folder, "runs_dir", cell.config.runs_dir)
    for partition in {cell.launcher.partition for cell in missing if isinstance(cell.launcher, SlurmConfig)}:
        slurm_commands.require_slurm(partition)
    _prepare_data(missing)
    return max(
        _launch_sweep(folder, [cell for cell in missing if cell.folder in own]) for folder, own in by_sweep.items()
    )


def _launch_sweep(folder: Path, missing: Sequence[Cell]) -> int:
    """Start the missing cells of one sweep."""
    ledger = Ledger(folder)
    ledger.place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as claims:
        with records.locked(ledger.place, wait=True):  # so that of two launches the later one sees the earlier one's
            free, held = _claim(missing, ledger, claims)
            for cell in held:
                print(f"left alone, as another process is running it: {cell.folder}", file=sys.stderr)
            code = freeze_code(ledger.code)
            for cell in free:
                freeze_config(cell)
            planned = {cell.folder: Entry.of(cell, code) for cell in free}
            ledger.add(planned.values())
            jobs = _submit(free, code, ledger, planned)
            here = [cell for cell in free if not isinstance(cell.launcher, SlurmConfig)]
            ledger.add(planned[cell.folder].started_as(this_process()) for cell in here)

        def ended(cell: Cell, exit_code: int) -> None:
            ledger.add([planned[cell.folder].started_as(this_process()).ended_with(exit_code)])

        exit_code = run_cells(here, code, ended) if here else EXIT_DONE
        exit_code = exit_code or _wait(jobs)
    return exit_code or (EXIT_FAILED if held else EXIT_DONE)


def _claim(cells: Sequence[Cell], ledger: Ledger, claims: ExitStack) -> tuple[list[Cell], list[Cell]]:
    """Which cells are free, and which someone else has. Those to be run here are claimed while ``claims`` is open."""
    jobs = {run: entry.job for run, entry in ledger.entries().items() if entry.launcher["name"] == "slurm"}
    live = slurm_commands.live_jobs() if any(jobs.values()) else {}
    free: list[Cell] = []
    held: list[Cell] = []
    for cell in cells:
        in_queue = jobs.get(cell.folder.name) in live
        if in_queue or records.is_locked(cell.folder) or records.is_locked(cell.folder, CLAIM_FILE):
            held.append(cell)
            continue
        if not isinstance(cell.launcher, SlurmConfig):
            cell.folder.mkdir(parents=True, exist_ok=True)
            claims.enter_context(records.locked(cell.folder, CLAIM_FILE))
        free.append(cell)
    return free, held


def _submit(cells: Sequence[Cell], code: Code, ledger: Ledger, planned: dict[Path, Entry]) -> dict[str, Cell]:
    """Hand Slurm's cells over. Returns cells by job id."""
    of_slurm = [cell for cell in cells if isinstance(cell.launcher, SlurmConfig)]
    jobs: dict[str, Cell] = {}
    if of_slurm:
        from asyncpp.launcher.slurm import submit  # imports submitit, which nobody else waits for

        def started(cell: Cell, job: str) -> None:
            jobs[job] = cell
            ledger.add([planned[cell.folder].started_as(job)])

        submit(of_slurm, code, started)
        place = shlex.join([ledger.folder.name, f"runs_dir={ledger.folder.parent}"])
        print(f"submitted {len(jobs)} jobs; python -m asyncpp.sweep status {place} shows them", flush=True)
    return jobs


def _wait(jobs: dict[str, Cell]) -> int:
    """Wait for Slurm's jobs where that is wanted."""
    waited = {job: cell for job, cell in jobs.items() if isinstance(cell.launcher, SlurmConfig) and cell.launcher.wait}
    if not waited:
        return EXIT_DONE
    from asyncpp.launcher.slurm import wait_for

    return wait_for(waited)


def _prepare_data(cells: Sequence[Cell]) -> None:
    """Prepare each source once, before several processes ask for it."""
    from asyncpp.data.prepare import prepare
    from asyncpp.data.status import display

    sources = {(cell.config.data.root, cell.config.data.name): cell.config.data for cell in cells}
    with display() as report:
        for source in sources.values():
            prepare(source, report)
