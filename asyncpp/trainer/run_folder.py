"""The folder of a run while it trains: held for one process, and its summary written however the training ends."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asyncpp import records
from asyncpp.errors import ConfigError
from asyncpp.records import Status
from asyncpp.trainer.ending import ending_of

if TYPE_CHECKING:
    from asyncpp.config import Config


class RunFolder:
    """The books of one launch. Writes configuration and environment, and takes away an earlier launch's summary."""

    def __init__(self, config: Config) -> None:
        self.path = config.folder
        self._config = config
        (self.path / records.SUMMARY_FILE).unlink(missing_ok=True)
        records.write_atomically(self.path / records.CONFIG_FILE, config.to_yaml())
        environment = records.environment()
        records.write_json(self.path / records.ENVIRONMENT_FILE, environment)
        self._summary = _identity(config) | {"commit": environment["commit"]}
        self._started_s = time.perf_counter()

    def note(self, **values: Any) -> None:
        """What the summary is to have, too, when it is written."""
        self._summary.update(values)

    def finish(self, result: Mapping[str, float]) -> dict[str, Any]:
        """Write the summary of a run that is done, and return it. result: by metric keys."""
        staleness = self._steady_staleness()
        values = {key.replace("/", "_"): value for key, value in result.items()}
        self.note(tokens_seen=self._config.num_tokens, **values, staleness_updates=staleness)
        return self._close(Status.FINISHED)

    def fail(self, error: BaseException) -> None:
        """Write the summary of a launch that ``error`` has ended."""
        ending = ending_of(error)
        cause = ending.cause(error)
        if cause is not None:
            self.note(error=cause)
        self._close(ending.status)

    def _close(self, status: Status) -> dict[str, Any]:
        self.note(status=status, duration_s=time.perf_counter() - self._started_s)
        records.write_json(self.path / records.SUMMARY_FILE, self._summary)
        return self._summary

    def _steady_staleness(self) -> float:
        """Mean of the second half of the run, in updates, from its records: it may have had several launches."""
        rows = records.read_metrics(self.path / records.METRICS_FILE)
        key, half = "pipeline/staleness_updates", self._config.trainer.num_steps // 2
        return statistics.mean(row[key] for row in rows if key in row and row["step"] >= half)


@contextmanager
def open_run_folder(config: Config) -> Iterator[RunFolder | None]:
    """Hold the folder of ``config`` for this process alone; None where the run is finished by now.

    What the body raises becomes the summary and goes on, but for a ConfigError, which leaves none: the run has not
    begun. Raises RunIsLocked where another process is writing the run.
    """
    config.folder.mkdir(parents=True, exist_ok=True)
    with records.locked(config.folder):
        if records.is_finished(config.folder):
            yield None
            return
        folder = RunFolder(config)
        try:
            yield folder
        except ConfigError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            folder.fail(error)
            raise


def _identity(config: Config) -> dict[str, Any]:
    """What the run is, for whoever looks for it."""
    return {
        "sweep_name": config.sweep_name,
        "model": config.model.name,
        "optimizer": config.optimizer.name,
        "delay": config.delay.effective_name(config.pipeline),
        "delay_varies": config.delay_varies,
        "correction": config.correction.name,
        "pipeline": config.pipeline.name,
        "seed": config.seed,
        "config_hash": config.hash(),
        "num_steps": config.trainer.num_steps,
    }
