"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from asyncpp.pipeline.clipping import Norms
from asyncpp.pipeline.record import BatchRecord
from asyncpp.pipeline.stage import StageState
from asyncpp.trainer.saving import Saver, Start
from asyncpp.trainer.sinks import Sinks
from asyncpp.trainer.stop import Stopped

if TYPE_CHECKING:
    from asyncpp.config import Config


class TrainingFailed(RuntimeError):
    """The run cannot go on; the message says why in one line."""


class Pipeline(Protocol):
    """What trains: the simulator (simulated.py), or one rank of a real pipeline (asyncpp.pipeline.runtime)."""

    @property
    def states(self) -> Sequence[StageState]:
        """Of the parts of the model that are here, to be saved."""
        ...

    def train(self) -> Iterator[BatchRecord | None]:
        """Yields after every update: its record, or None on a rank that does not keep the books."""
        ...

    def validation_losses(self) -> dict[str, float]:
        """At the newest weight version, in nats a token."""
        ...

    def stops_after(self, num_updates: int) -> bool:
        """Whether the run was asked to stop here; the same answer on all ranks."""
        ...

    def last_norms(self, num_updates: int) -> Norms:
        """Of all parameters' gradients in the last of ``num_updates`` batches."""
        ...

    def measurements(self) -> dict[str, float]: ...


def train(config: Config, pipeline: Pipeline, sinks: Sinks | None, saver: Saver, start: Start) -> dict[str, float]:
    """Run every step of ``config`` from ``start`` on and return the last validation losses and the measured sizes.

    sinks: where the records go; None on a rank that does not keep the books.
    Raises TrainingFailed when the gradients stay non-finite, a validation loss is not finite, or the last checkpoint
    could not be written; Stopped, when a checkpoint is written, where the run was asked to stop. What only rank 0
    notices ends the other ranks, too: they lose it.
    """
    trainer = config.trainer
    losses: dict[str, float] = {}
    skipped_in_a_row = start.skipped_in_a_row
    for num_updates, record in enumerate(pipeline.train(), start.step + 1):
        if record is not None and sinks is not None:
            sinks.step(num_updates - 1, record, lr=config.optimizer.lr * record.lr_factor)
            skipped_in_a_row = skipped_in_a_row + 1 if record.update.skipped else 0
            if skipped_in_a_row >= trainer.max_skipped_steps:
                raise TrainingFailed(
                    f"no finite gradient in {skipped_in_a_row} steps in a row, the last at step {num_updates - 1} "
                    f"(trainer.max_skipped_steps={trainer.max_skipped_steps}); try a smaller optimizer.lr"
                )

        evaluates = trainer.eval_every is not None and num_updates % trainer.eval_every == 0
        evaluates |= num_updates == trainer.num_steps
        if evaluates:
            losses = pipeline.validation_losses()
            if sinks is not None:
                sinks.validation(num_updates, losses)
            if not all(math.isfinite(loss) for loss in losses.values()):
                raise TrainingFailed(f"the validation loss is {losses} after {num_updates} updates")

        stops = pipeline.stops_after(num_updates) and num_updates < trainer.num_steps
        if stops or saver.due(num_updates):
            norms = pipeline.last_norms(num_updates) if trainer.clip_by == "previous_step" else {}
            counters = {
                "metrics_bytes": 0 if sinks is None else sinks.metrics_bytes(),
                "skipped_in_a_row": skipped_in_a_row,
                "last_norms": {str(index): norm for index, norm in norms.items()},
            }
            saver.save(num_updates, pipeline.states, counters, losses.get("val/loss") if evaluates else None)
        if stops:
            raise Stopped(saver.finish())
    if saver.finish() is None:
        raise TrainingFailed(
            f"the state after {trainer.num_steps} updates could not be saved; run again to repeat the rest"
        )
    result = {**(losses or pipeline.validation_losses()), **pipeline.measurements()}
    if sinks is not None:
        sinks.result(result)
    return result
