"""Where a run's numbers go: metrics.jsonl always, a tracker on request, and the watcher's terminal."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.utils import get_class

from asyncpp import records
from asyncpp.pipeline.record import BatchRecord
from asyncpp.records import Status
from asyncpp.trainer.ending import ending_of
from asyncpp.trainer.progress import Progress, progress_for
from asyncpp.trainer.saving import Start
from asyncpp.trainer.tracking.mirror import Mirror
from asyncpp.trainer.tracking.tracker import TrackedRun

if TYPE_CHECKING:
    from types import TracebackType

    from asyncpp.config import Config


class Sinks:
    """Opens the metrics file; a context manager that closes everything.

    tokens_per_step: of one batch, for throughput. metrics_bytes: how much of the metrics file stands, where the run
    goes on from a checkpoint: what was written after it is written again. mirror: a second reader of the rows.
    """

    def __init__(
        self, folder: Path, progress: Progress, tokens_per_step: int, metrics_bytes: int, mirror: Mirror | None = None
    ) -> None:
        self._metrics = (folder / records.METRICS_FILE).open("a", encoding="utf-8")
        self._metrics.truncate(metrics_bytes)
        self._mirror = mirror
        self._summary: dict[str, float] = {}
        self._progress = progress
        self._tokens_per_step = tokens_per_step
        self._last_row_s = time.perf_counter()

    def __enter__(self) -> Sinks:
        self._progress.start()
        self._last_row_s = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._progress.stop()
        self._metrics.close()
        if self._mirror is not None:
            self._mirror.close(Status.FINISHED if error is None else ending_of(error).status, self._summary)

    def step(self, step: int, record: BatchRecord, lr: float) -> None:
        """The row of one step.

        ``train/loss`` is at the weights that the batch differentiated; ``lr`` is before a correction's factor. Its time
        is that since the last row, or since the last validation.
        """
        update, now_s = record.update, time.perf_counter()
        duration_s, self._last_row_s = now_s - self._last_row_s, now_s
        self._write(
            {
                "step": step,
                "train/loss": record.loss,
                "optim/lr": lr,
                "optim/grad_norm": update.grad_norm,
                "optim/clip_factor": update.clip_factor,
                "optim/skipped": int(update.skipped),
                "pipeline/staleness_updates": update.staleness_updates,
                **record.metrics,
                f"{records.TIME_PREFIX}step_s": duration_s,
                f"{records.TIME_PREFIX}tokens_per_s": self._tokens_per_step / duration_s,
            }
        )
        self._progress.step(step + 1, record.loss)

    def metrics_bytes(self) -> int:
        """The size of the metrics file, all of which is on the disk then."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return os.fstat(self._metrics.fileno()).st_size

    def validation(self, num_updates: int, losses: Mapping[str, float]) -> None:
        """The row of a validation after ``num_updates`` updates."""
        self._write({"step": num_updates, **losses})
        self._progress.validation(num_updates, losses["val/loss"])
        self._last_row_s = time.perf_counter()

    def result(self, result: Mapping[str, float]) -> None:
        """What the finished run comes to, by metric keys; its summary has the same."""
        self._summary = {key.replace("/", "_"): value for key, value in result.items()}

    def _write(self, row: dict[str, Any]) -> None:
        """JSON has no NaN: a number that is not finite is written as null."""
        row = {key: value if math.isfinite(value) else None for key, value in row.items()}
        records.write_metrics_row(self._metrics, row)
        if self._mirror is not None:
            self._mirror.log(row)


class NoSinks:
    """Of a rank that does not keep the books: Sinks that record nothing."""

    def __enter__(self) -> NoSinks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        pass

    def step(self, step: int, record: BatchRecord, lr: float) -> None:
        pass

    def metrics_bytes(self) -> int:
        return 0

    def validation(self, num_updates: int, losses: Mapping[str, float]) -> None:
        pass

    def result(self, result: Mapping[str, float]) -> None:
        pass


def sinks_of(config: Config, folder: Path, start: Start, rank: int = 0) -> Sinks | NoSinks:
    """Of a run in ``folder`` from ``start`` on; rank 0 records for all."""
    if rank > 0:
        return NoSinks()
    tokens_per_step = config.trainer.batch_size * config.data.sequence_length
    progress = progress_for(folder.name, config.trainer.num_steps, tokens_per_step, start.step)
    return Sinks(folder, progress, tokens_per_step, start.metrics_bytes, _mirror_of(config, folder, start))


def _mirror_of(config: Config, folder: Path, start: Start) -> Mirror | None:
    logger = config.logger
    if logger.tracker is None:
        return None
    path, run = logger.tracker, TrackedRun(folder, config.sweep_name, config.hash(), asdict(config), start.step)
    return Mirror(logger.name, lambda: get_class(path)(logger, run))
