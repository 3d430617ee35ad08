"""How far a preparation is, and how a person sees it: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 10.0


@dataclass(frozen=True)
class Status:
    """fraction: of the work that is done; fraction and left_s are None where the end is not known."""

    activity: str
    num_tokens: int = 0
    tokens_per_s: float = 0.0
    fraction: float | None = None
    left_s: float | None = None

    def numbers(self) -> str:
        if not self.num_tokens:
            return ""
        left = "" if self.left_s is None else f"  {self.left_s:,.0f} s left"
        return f"{self.num_tokens:,} tokens  {self.tokens_per_s:,.0f} tokens/s{left}"


Report = Callable[[Status], None]


def silent(status: Status) -> None:
    """The report that shows nothing."""


@contextmanager
def display() -> Iterator[Report]:
    """A report that writes to standard error. Nothing appears unless something is reported."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:

        def report(status: Status) -> None:
            if not bar.tasks:
                bar.add_task("", total=None, numbers="")
            total = None if status.fraction is None else 1.0
            bar.update(
                bar.tasks[0].id,
                description=status.activity,
                total=total,
                completed=status.fraction or 0.0,
                numbers=status.numbers(),
            )

        yield report


def _lines() -> Report:
    """A line when the activity changes, and one every LINE_EVERY_S."""
    shown, shown_at_s = "", 0.0

    def report(status: Status) -> None:
        nonlocal shown, shown_at_s
        now_s = time.monotonic()
        if status.activity != shown or now_s - shown_at_s >= LINE_EVERY_S:
            shown, shown_at_s = status.activity, now_s
            percent = "" if status.fraction is None else f"  {status.fraction:.0%}"
            print(f"{status.activity}{percent}  {status.numbers()}".rstrip(), file=sys.stderr, flush=True)

    return report
