"""Tells a tracker of a run without making the run wait for it, or fail with it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from asyncpp.records import Status
from asyncpp.trainer.tracking.tracker import Row, Tracker

CLOSE_TIMEOUT_S = 60.0  # so long a run waits for its tracker at its end
INTERRUPTED_TIMEOUT_S = 10.0  # and one that was asked to stop, which may be killed soon

_End = tuple[Status, Mapping[str, float]]


class Mirror:
    """A tracker in a thread of its own, which opens it, too.

    name: of the logger, for the one warning when the tracker fails or is late. Rows are not dropped but for that.
    """

    def __init__(self, name: str, open_tracker: Callable[[], Tracker]) -> None:
        self._name = name
        self._rows: SimpleQueue[Row | _End] = SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._follow, args=(open_tracker,), name=name, daemon=True)
        self._thread.start()

    def log(self, row: Row) -> None:
        """Returns at once."""
        if not self._failed:  # nobody would ever read it
            self._rows.put(row)

    def close(self, status: Status, summary: Mapping[str, float]) -> None:
        """Wait until the tracker has seen everything, for so long."""
        timeout_s = INTERRUPTED_TIMEOUT_S if status == Status.INTERRUPTED else CLOSE_TIMEOUT_S
        self._rows.put((status, summary))
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._warn(f"not done {timeout_s:g} s after the run's end")

    def _follow(self, open_tracker: Callable[[], Tracker]) -> None:
        try:
            tracker = open_tracker()
            while not isinstance(item := self._rows.get(), tuple):
                tracker.log(item)
            tracker.finish(*item)
        except Exception as error:  # whatever a third party's code raises
            self._failed = True
            self._warn(f"{type(error).__name__}: {' '.join(str(error).split())}")

    def _warn(self, reason: str) -> None:
        print(f"warning: logger={self._name} stopped ({reason}); metrics.jsonl has everything", file=sys.stderr)
