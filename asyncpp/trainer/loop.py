"""The training loop."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncpp.data.batches import Batches
from asyncpp.pipeline.simulator import Simulator
from asyncpp.trainer.evaluate import validation_losses
from asyncpp.trainer.probes import StalenessProbe
from asyncpp.trainer.sinks import Sinks

if TYPE_CHECKING:
    from asyncpp.config import Config


class TrainingFailed(RuntimeError):
    """The run cannot go on; the message says why in one line."""


def train(config: Config, simulator: Simulator, batches: Batches, validation: Tensor, sinks: Sinks) -> dict[str, float]:
    """Run every step of ``config`` and return the last validation losses and the mean staleness of its second half.

    validation: tokens of the held-out sequences, int64 (sequences, sequence_length + 1).
    Raises TrainingFailed when the gradients stay non-finite, or a validation loss is not finite.
    """
    trainer = config.trainer
    losses: dict[str, float] = {}
    probe = StalenessProbe(simulator, trainer.probe_every)
    staleness_updates: list[int] = []
    skipped_in_a_row = 0
    for step in range(trainer.num_steps):
        windows = torch.from_numpy(batches.batch(step)).to(trainer.device)
        lr_factor = config.lr_schedule.factor(step, trainer.num_steps)
        probe.before_update(step, windows)

        started_s = time.perf_counter()
        record = simulator.train_batch(step, windows, lr_factor)
        sinks.step(step, record, lr=config.optimizer.lr * lr_factor, duration_s=time.perf_counter() - started_s)
        sinks.probe(step, probe.after_update(step))

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
            losses = validation_losses(simulator, validation, trainer.eval_batch_size)
            sinks.validation(num_updates, losses)
            if not all(math.isfinite(loss) for loss in losses.values()):
                raise TrainingFailed(f"the validation loss is {losses} after {num_updates} updates")
    return {**losses, "staleness_updates": statistics.mean(staleness_updates[trainer.num_steps // 2 :])}
