"""The training loop."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from asyncpp.pipeline.record import BatchRecord
from asyncpp.trainer.sinks import Sinks

if TYPE_CHECKING:
    from asyncpp.config import Config


class TrainingFailed(RuntimeError):
    """The run cannot go on; the message says why in one line."""


class Pipeline(Protocol):
    """What trains: the simulator (simulated.py), or one rank of a real pipeline (asyncpp.pipeline.runtime)."""

    def train(self) -> Iterator[BatchRecord | None]:
        """Yields after every update: its record, or None on a rank that does not keep the books."""
        ...

    def validation_losses(self) -> dict[str, float]:
        """At the newest weight version, in nats a token."""
        ...

    def measurements(self) -> dict[str, float]: ...


def train(config: Config, pipeline: Pipeline, sinks: Sinks | None) -> dict[str, float]:
    """Run every step of ``config`` and return the last validation losses and the mean staleness of its second half.

    sinks: where the records go; None on a rank that does not keep the books.
    Raises TrainingFailed when the gradients stay non-finite, or a validation loss is not finite.
    """
    trainer = config.trainer
    losses: dict[str, float] = {}
    staleness_updates: list[int] = []
    skipped_in_a_row = 0
    for step, record in enumerate(pipeline.train()):
        if record is not None and sinks is not None:
            sinks.step(step, record, lr=config.optimizer.lr * record.lr_factor)
            staleness_updates.append(record.update.staleness_updates)
            skipped_in_a_row = skipped_in_a_row + 1 if record.update.skipped else 0
            if skipped_in_a_row >= trainer.max_skipped_steps:
                raise TrainingFailed(
                    f"no finite gradient in {skipped_in_a_row} steps in a row, the last at step {step} "
                    f"(trainer.max_skipped_steps={trainer.max_skipped_steps}); try a smaller optimizer.lr"
                )

        num_updates = step + 1
        due = trainer.eval_every is not None and num_updates % trainer.eval_every == 0
        if due or num_updates == trainer.num_steps:
            losses = pipeline.validation_losses()
            if sinks is not None:
                sinks.validation(num_updates, losses)
            if not all(math.isfinite(loss) for loss in losses.values()):
                raise TrainingFailed(f"the validation loss is {losses} after {num_updates} updates")
    steady = staleness_updates[trainer.num_steps // 2 :]
    return {**losses, **({"staleness_updates": statistics.mean(steady)} if steady else {}), **pipeline.measurements()}
