"""Run a sweep: every cell that is not finished, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from asyncpp import records
from asyncpp.data.availability import require_available
from asyncpp.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from asyncpp.sweep.expand import Cell, SweepOptions, expand
from asyncpp.sweep.file import load_sweep
from asyncpp.trainer.progress import CellWatcher


def run_sweep(name: str, options: SweepOptions) -> int:
    """Run what is not finished. Returns EXIT_DONE when every cell is."""
    cells = expand(name, load_sweep(name), options)
    missing = [cell for cell in cells if not records.is_finished(cell.config.folder)]
    print(f"{Path(name).stem}: {len(cells)} runs, {len(cells) - len(missing)} finished before", flush=True)
    if not missing:
        return EXIT_DONE
    for cell in missing:
        require_available(cell.config.data, cell.config.num_tokens)
        records.require_writable(cell.config.folder, "runs_dir", cell.config.runs_dir)
    held = [cell for cell in missing if records.is_locked(cell.config.folder)]
    for cell in held:
        print(f"left alone, as another process is running it: {cell.config.folder}", file=sys.stderr)
    _prepare_data(missing)
    exit_code = _run_cells([cell for cell in missing if cell not in held], options.num_parallel)
    return exit_code or (EXIT_FAILED if held else EXIT_DONE)


def _prepare_data(cells: Sequence[Cell]) -> None:
    """Prepare each source once, before several processes ask for it."""
    from asyncpp.data.prepare import prepare
    from asyncpp.data.status import display

    sources = {(cell.config.data.root, cell.config.data.name): cell.config.data for cell in cells}
    with display() as report:
        for source in sources.values():
            prepare(source, report)


def _run_cells(cells: Sequence[Cell], num_parallel: int) -> int:
    """Run ``cells``, ``num_parallel`` at a time. A failed one does not stop the others."""
    waiting = list(cells)
    running: dict[subprocess.Popen[bytes], Cell] = {}
    failed: list[Cell] = []
    with CellWatcher({cell.config.folder: cell.config.trainer.num_steps for cell in cells}) as watcher:
        try:
            while waiting or running:
                while waiting and len(running) < num_parallel:
                    cell = waiting.pop(0)
                    running[_start(cell)] = cell
                time.sleep(0.2)
                watcher.refresh(cell.config.folder for cell in running.values())
                for process in [process for process in running if process.poll() is not None]:
                    cell = running.pop(process)
                    watcher.ended(cell.config.folder)
                    if process.returncode != EXIT_DONE:
                        failed.append(cell)
        except KeyboardInterrupt:
            for process in running:
                process.send_signal(signal.SIGINT)
            for process in running:
                process.wait()
            print("\ninterrupted; run the same command again to go on with what is missing", file=sys.stderr)
            return EXIT_INTERRUPTED
    for cell in failed:
        summary = records.read_summary(cell.config.folder) or {}
        print(
            f"failed: {cell.config.folder}: {summary.get('error', 'no summary; see output.log there')}", file=sys.stderr
        )
    return EXIT_FAILED if failed else EXIT_DONE


def _start(cell: Cell) -> subprocess.Popen[bytes]:
    """A process of its own for the cell, its output beside its records."""
    cell.config.folder.mkdir(parents=True, exist_ok=True)
    threads = str(cell.config.trainer.num_threads)
    with (cell.config.folder / records.OUTPUT_FILE).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "asyncpp.train", *cell.overrides],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C reaches this process, which passes it on once
            env=os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
