"""``status``: the cells of a sweep as a table, or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from asyncpp.arguments import parse_arguments
from asyncpp.errors import EXIT_DONE, EXIT_FAILED
from asyncpp.launcher.ledger import Ledger
from asyncpp.sweep.state import LIVE, CellState, State, count, open_ledger, states_of

WATCH_S = 2.0
STYLES = {State.DONE: "green", State.RUNNING: "cyan", State.FAILED: "red", State.STOPPED: "yellow"}


@dataclass
class StatusOptions:
    """watch: show it again and again until no cell runs or waits. json: one document."""

    runs_dir: str = "runs"
    watch: bool = False
    json: bool = False


def status(name: str, arguments: Sequence[str]) -> int:
    """Show every cell of the sweep ``name``. Returns EXIT_FAILED where a cell failed."""
    options = parse_arguments(["watch=true" if word == "--watch" else word for word in arguments], StatusOptions)
    ledger = open_ledger(name, options.runs_dir)
    states = _watch(ledger) if options.watch and not options.json else states_of(ledger)
    if options.json:
        report = {"sweep": ledger.folder.name, "counts": count(states), "cells": [asdict(cell) for cell in states]}
        print(json.dumps(report, indent=1))
    elif not options.watch:
        _console().print(_table(ledger, states))
    return EXIT_FAILED if any(cell.state is State.FAILED for cell in states) else EXIT_DONE


def _watch(ledger: Ledger) -> list[CellState]:
    """Until nothing is live, or Ctrl-C. Returns the last states."""
    states = states_of(ledger)
    with Live(_table(ledger, states), console=_console(), auto_refresh=False) as live:
        try:
            while any(cell.state in LIVE for cell in states):
                time.sleep(WATCH_S)
                states = states_of(ledger)
                live.update(_table(ledger, states), refresh=True)
        except KeyboardInterrupt:
            pass
    return states


def _console() -> Console:
    """As wide as the longest line where no terminal gives a width: a name that is cut is worth nothing."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=300)


def _table(ledger: Ledger, states: Sequence[CellState]) -> Table:
    title = f"{ledger.folder.name}: " + ", ".join(f"{number} {state}" for state, number in count(states).items())
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in ("state", "run", "step", "loss", "time left", "job", "error"):
        table.add_column(
            column, overflow="fold", justify="right" if column in ("step", "loss", "time left") else "left"
        )
    for cell in states:
        table.add_row(
            f"[{STYLES.get(cell.state, 'default')}]{cell.state}[/]",
            cell.run,
            f"{cell.step}/{cell.num_steps}",
            "" if cell.loss is None else f"{cell.loss:.4f}",
            "" if cell.left_s is None else str(timedelta(seconds=round(cell.left_s))),
            cell.job or "",
            (cell.error or "").replace("[", r"\["),  # which rich would take for a style
        )
    return table
