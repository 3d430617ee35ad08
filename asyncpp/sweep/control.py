"""``run``, ``retry`` and ``cancel``: what is started, and stopped."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from asyncpp import records
from asyncpp.arguments import parse_arguments
from asyncpp.errors import EXIT_DONE, EXIT_FAILED
from asyncpp.launcher import slurm_commands
from asyncpp.launcher.cell import Cell
from asyncpp.launcher.config import launcher_from
from asyncpp.launcher.launch import launch
from asyncpp.launcher.ledger import CLAIM_FILE, Entry, Ledger
from asyncpp.saved_config import read_config
from asyncpp.sweep.expand import SweepOptions, expand
from asyncpp.sweep.file import load_sweep
from asyncpp.sweep.state import LIVE, State, open_ledger, states_of


@dataclass
class PlaceOptions:
    runs_dir: str = "runs"


def run(name: str, arguments: Sequence[str]) -> int:
    """Start every cell of the sweep file ``name`` that is not finished."""
    launcher, rest = _split(arguments)
    options = parse_arguments(rest, SweepOptions)
    overrides = [f"hydra/{word}" if word.startswith("launcher=") else f"hydra.{word}" for word in launcher]
    return launch(expand(name, load_sweep(name), options, overrides))


def retry(name: str, arguments: Sequence[str]) -> int:
    """Start the failed cells again, where they are: their configuration as it was, with the code as it is now.

    ``launcher.<key>=<value>`` changes how they are started.
    """
    launcher, rest = _split(arguments)
    ledger = open_ledger(name, parse_arguments(rest, PlaceOptions).runs_dir)
    changes = [word.removeprefix("launcher.") for word in launcher]
    entries = ledger.entries()
    failed = [entries[cell.run] for cell in states_of(ledger) if cell.state is State.FAILED]
    print(f"{ledger.folder.name}: {len(failed)} failed", flush=True)
    return launch([_cell_of(ledger, entry, changes) for entry in failed]) if failed else EXIT_DONE


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """``launcher=<name>`` and ``launcher.<key>=<value>``, and the other arguments."""
    launcher = [word for word in arguments if word.startswith(("launcher=", "launcher."))]
    return launcher, [word for word in arguments if word not in launcher]


def _cell_of(ledger: Ledger, entry: Entry, changes: Sequence[str]) -> Cell:
    """The cell of ``entry``, whose folder may have been made elsewhere, or seen from elsewhere."""
    place = {"runs_dir": str(ledger.folder.parent), "sweep_name": ledger.folder.name}
    config = replace(read_config("run", ledger.folder / entry.run), **place)
    launcher = launcher_from(entry.launcher, changes)
    launcher.check(config)
    return Cell(tuple(entry.overrides), config, launcher)


def cancel(name: str, arguments: Sequence[str]) -> int:
    """Stop every cell that runs or waits. What runs saves its state first, and ``run`` goes on from there."""
    ledger = open_ledger(name, parse_arguments(arguments, PlaceOptions).runs_dir)
    entries = ledger.entries()
    live = [entries[cell.run] for cell in states_of(ledger) if cell.state in LIVE]
    slurm_commands.cancel([entry.job for entry in live if entry.job and entry.launcher["name"] == "slurm"])
    left_alone = 0
    launches: dict[str, list[Entry]] = defaultdict(list)
    for entry in live:
        if entry.job and entry.launcher["name"] == "local":
            launches[entry.job].append(entry)
    for job, own in launches.items():
        host, _, process = job.rpartition(":")
        # who holds a cell's claim is the process that started it, still; a run may have outlived that one
        is_there = any(records.is_locked(ledger.folder / entry.run, CLAIM_FILE) for entry in own)
        if host == socket.gethostname() and is_there:
            os.kill(int(process), signal.SIGINT)
            continue
        reason = f"process {process} on {host}" if is_there else "their launch has died, and they go on to their end"
        print(f"left alone: {', '.join(entry.run for entry in own)}: {reason}", file=sys.stderr)
        left_alone += len(own)
    print(f"{ledger.folder.name}: {len(live) - left_alone} cells asked to stop")
    return EXIT_FAILED if left_alone else EXIT_DONE
