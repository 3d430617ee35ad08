"""Cells as processes of this machine."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from asyncpp.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from asyncpp.launcher.cell import Cell
from asyncpp.launcher.freeze import Code
from asyncpp.launcher.process import Process, last_words, note_death, output_file, signals_held, start_cell
from asyncpp.launcher.progress import CellWatcher

POLL_S = 0.1


Ended = Callable[[Cell, int], None]


def run_cells(cells: Sequence[Cell], code: Code, ended: Ended) -> int:
    """Run ``cells``, launcher.num_parallel at a time. A failed one does not stop the others. Returns an exit code.

    ended: is told of every cell whose process is over, and its exit code.
    """
    waiting = list(cells)
    running: dict[Process, Cell] = {}
    failed: list[Cell] = []
    with CellWatcher({cell.folder: cell.config.trainer.num_steps for cell in cells}) as watcher:
        try:
            while waiting or running:
                while waiting and len(running) < waiting[0].launcher.num_parallel:
                    cell = waiting.pop(0)
                    with signals_held():  # a process that this one did not know of would never be stopped
                        running[_start(cell, code)] = cell
                time.sleep(POLL_S)
                watcher.refresh(cell.folder for cell in running.values())
                for process in [process for process in running if process.poll() is not None]:
                    cell = running.pop(process)
                    note_death(cell.folder, process.returncode)
                    ended(cell, process.returncode)
                    watcher.ended(cell.folder, process.returncode)
                    if process.returncode != EXIT_DONE:
                        failed.append(cell)
        except KeyboardInterrupt:
            _stop(running, ended)
            print("\ninterrupted; run the same command again to go on with what is missing", file=sys.stderr)
            return EXIT_INTERRUPTED
        except OSError as error:  # a full disk, a lost folder: nobody would look after what runs
            _stop(running, ended)
            print(f"error: {error}; run the same command again to go on with what is missing", file=sys.stderr)
            return EXIT_FAILED
    for cell in failed:
        print(f"failed: {cell.folder}: {last_words(cell.folder)}", file=sys.stderr)
    return EXIT_FAILED if failed else EXIT_DONE


def _stop(running: Mapping[Process, Cell], ended: Ended) -> None:
    """Each saves its state after the update that it is at."""
    for process in running:
        process.send_signal(signal.SIGINT)
    for process, cell in running.items():
        exit_code = process.wait()
        with suppress(OSError):  # which may be why they are stopped
            note_death(cell.folder, exit_code)
            ended(cell, exit_code)


def _start(cell: Cell, code: Code) -> Process:
    with output_file(cell.folder) as output:
        return start_cell(cell.folder, cell.config.trainer.num_threads, code.environment(), output)
