"""The simulator as the training loop drives it: fed with batches, probed, evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from asyncpp.pipeline.clipping import Norms
from asyncpp.pipeline.part import PartState
from asyncpp.pipeline.record import BatchRecord
from asyncpp.pipeline.simulator import Simulator
from asyncpp.trainer.probes import StalenessProbe


class Simulated:
    """batches: numbers and tokens, int64 (sequences, sequence_length + 1). validation: tokens likewise.

    eval_batch_size: sequences of one validation forward. probe_every: see probes.py; None probes nothing.
    stop: whether the run was asked to. before_update: see Simulator.train_batch.
    """

    def __init__(
        self,
        simulator: Simulator,
        batches: Iterable[tuple[int, Tensor]],
        lr_factor: Callable[[int], float],
        validation: Tensor,
        eval_batch_size: int,
        probe_every: int | None,
        stop: Callable[[], bool] = lambda: False,
        before_update: Callable[[], None] | None = None,
    ) -> None:
        self._simulator = simulator
        self._batches = batches
        self._lr_factor = lr_factor
        self._validation = validation
        self._eval_batch_size = eval_batch_size
        self._stop = stop
        self._before_update = before_update
        self._probe = StalenessProbe(simulator, probe_every)

    def train(self) -> Iterator[BatchRecord]:
        """Run every batch, and yield its record after its update."""
        for step, windows in self._batches:
            self._probe.before_update(step, windows)
            record = self._simulator.train_batch(step, windows, self._lr_factor(step), self._before_update)
            yield replace(record, metrics=record.metrics | self._probe.after_update(step))

    @property
    def states(self) -> Sequence[PartState]:
        """Of all parts of the model."""
        return self._simulator.states

    def last_norms(self, num_updates: int) -> Norms:
        """The norms of all parameters' gradients in the last batch, where the next one is clipped by them."""
        norms = self._simulator.last_norms if self._simulator.clipping.asks_for_last else None
        return norms or {}

    def stops_after(self, num_updates: int) -> bool:
        return self._stop()

    def validation_losses(self) -> dict[str, float]:
        """``val/loss`` is at the newest weights x; ``val/loss_z`` at z, where the correction has such a reading."""
        losses = {"val/loss": self._mean_loss(self._simulator.newest_weights())}
        z_weights = self._simulator.z_weights()
        if z_weights is not None:
            losses["val/loss_z"] = self._mean_loss(z_weights)
        return losses

    def measurements(self) -> dict[str, float]:
        return self._simulator.measurements()

    def _mean_loss(self, weights: Sequence[Tensor]) -> float:
        """Mean over all tokens: a last, smaller batch counts by its size."""
        batches = self._validation.split(self._eval_batch_size)
        return sum(self._simulator.loss(weights, batch) * len(batch) for batch in batches) / len(self._validation)
