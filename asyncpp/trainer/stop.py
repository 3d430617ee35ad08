"""Signals that ask a run to stop: it does so after the next update, with a checkpoint."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from asyncpp.arguments import STOP_SIGNALS


class Stopped(Exception):
    """The run has stopped as it was asked to. step: of the checkpoint that it goes on from, None if there is none."""

    def __init__(self, step: int | None) -> None:
        super().__init__(step)
        self.step = step


@contextmanager
def stop_requests(on_request: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Within it Ctrl-C, SIGTERM and SIGUSR2 interrupt nothing; the function that it gives says whether one has come.

    A further signal changes nothing, however soon. on_request: called at the first one.
    """
    asked = False

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:
            asked = True
            on_request()

    before = {number: signal.signal(number, take) for number in STOP_SIGNALS}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say_so() -> None:
    """For a person who pressed Ctrl-C: that it was heard."""
    print("\nstopping after this update ...", file=sys.stderr, flush=True)
