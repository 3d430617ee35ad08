"""What a tracker is told of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncpp.records import Status

Row = Mapping[str, float | None]  # of metrics.jsonl: None where a number is not finite


@dataclass(frozen=True)
class TrackedRun:
    """folder: the run's. config: every value, as plain containers. first_step: where this launch of the run begins."""

    folder: Path
    sweep_name: str
    config_hash: str
    config: dict[str, Any]
    first_step: int


class Tracker(ABC):
    """Follows one launch of a run. Whatever it raises ends the tracking, never the training.

    A constructor takes the entry of conf/logger and the TrackedRun.
    """

    @abstractmethod
    def log(self, row: Row) -> None:
        """One row of metrics.jsonl, in order."""

    @abstractmethod
    def finish(self, status: Status, summary: Mapping[str, float]) -> None:
        """The launch has ended. summary: what a finished run comes to, by the keys of summary.json."""
