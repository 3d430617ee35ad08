"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from asyncpp.pipeline.clipping import Norms
from asyncpp.pipeline.part import PartState
from asyncpp.pipeline.record import BatchRecord
from asyncpp.trainer.ending import TrainingFailed
from asyncpp.trainer.saving import Saver, Start
from asyncpp.trainer.sinks import NoSinks, Sinks
from asyncpp.trainer.stop import Stopped

if TYPE_CHECKING:
    from asyncpp.config import Config
    from asyncpp.trainer.config import TrainerConfig


class Pipeline(Protocol):
    """What trains: the simulator (simulated.py), or one rank of a real pipeline (asyncpp.pipeline.runtime)."""

    @property
    def states(self) -> Sequence[PartState]:
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
        """Of all parameters' gradients in the last of ``num_updates`` batches, if the next batch is clipped by them.

        Empty where it is not, since a rank of a real pipeline would have to wait for them.
        """
        ...

    def measurements(self) -> dict[str, float]:
        """Of the whole model, for the summary, counted from the tensors; all ranks call it together.

        num_parameters: numbers that are learned. optimizer_state_copies, correction_state_copies: numbers of state,
        over num_parameters.
        """
        ...


def train(config: Config, pipeline: Pipeline, sinks: Sinks | NoSinks, saver: Saver, start: Start) -> dict[str, float]:
    """Run every step of ``config`` from ``start`` on and return the last validation losses and the measured sizes.

    Raises TrainingFailed when the gradients stay non-finite, a validation loss is not finite, or the last checkpoint
    could not be written; Stopped, when a checkpoint is written, where the run was asked to stop. What only rank 0
    notices ends the other ranks, too: they lose it.
    """
    trainer = config.trainer
    losses: dict[str, float] = {}
    skipped_in_a_row = start.skipped_in_a_row
    for num_updates, record in enumerate(pipeline.train(), start.step + 1):
        if record is not None:
            sinks.step(num_updates - 1, record, lr=config.optimizer.lr * record.lr_factor)
            skipped_in_a_row = _count_skipped(skipped_in_a_row, num_updates - 1, record, trainer)

        losses = _validate(pipeline, sinks, num_updates) if _is_due(trainer, num_updates) else {}

        stops = pipeline.stops_after(num_updates) and num_updates < trainer.num_steps
        if stops or saver.due(num_updates):
            saver.save(
                num_updates,
                pipeline.states,
                last_norms=pipeline.last_norms(num_updates),
                skipped_in_a_row=skipped_in_a_row,
                metrics_bytes=sinks.metrics_bytes(),
                val_loss=losses.get("val/loss"),
            )
        if stops:
            raise Stopped(saver.finish())
    if saver.finish() is None:
        raise TrainingFailed(
            f"the state after {trainer.num_steps} updates could not be saved; run again to repeat the rest"
        )
    result = {**(losses or pipeline.validation_losses()), **pipeline.measurements()}
    sinks.result(result)
    return result


def _count_skipped(before: int, step: int, record: BatchRecord, trainer: TrainerConfig) -> int:
    """How many steps in a row were skipped, up to ``step``. Raises TrainingFailed for too many."""
    skipped_in_a_row = before + 1 if record.update.skipped else 0
    if skipped_in_a_row >= trainer.max_skipped_steps:
        raise TrainingFailed(
            f"no finite gradient in {skipped_in_a_row} steps in a row, the last at step {step} "
            f"(trainer.max_skipped_steps={trainer.max_skipped_steps}); try a smaller optimizer.lr"
        )
    return skipped_in_a_row


def _is_due(trainer: TrainerConfig, num_updates: int) -> bool:
    """Whether there is a validation after ``num_updates``: every so often, and at the end."""
    every = trainer.eval_every
    return num_updates == trainer.num_steps or (every is not None and num_updates % every == 0)


def _validate(pipeline: Pipeline, sinks: Sinks | NoSinks, num_updates: int) -> dict[str, float]:
    """The losses after ``num_updates``, recorded. Raises TrainingFailed where one is not finite."""
    losses = pipeline.validation_losses()
    sinks.validation(num_updates, losses)
    if not all(math.isfinite(loss) for loss in losses.values()):
        raise TrainingFailed(f"the validation loss is {losses} after {num_updates} updates")
    return losses
