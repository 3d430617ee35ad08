"""Validation loss at a fixed set of held-out sequences."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from asyncpp.pipeline.simulator import Simulator


def validation_losses(simulator: Simulator, windows: Tensor, batch_size: int) -> dict[str, float]:
    """Mean cross-entropy in nats a token over ``windows``, int64 (sequences, sequence_length + 1).

    ``val/loss`` is at the newest weights x; ``val/loss_z`` at z, where the correction has such a reading.
    """
    losses = {"val/loss": _mean_loss(simulator, simulator.newest_weights(), windows, batch_size)}
    z_weights = simulator.z_weights()
    if z_weights is not None:
        losses["val/loss_z"] = _mean_loss(simulator, z_weights, windows, batch_size)
    return losses


def _mean_loss(simulator: Simulator, weights: Sequence[Tensor], windows: Tensor, batch_size: int) -> float:
    """Mean over all tokens: a last, smaller batch counts by its size."""
    batches = windows.split(batch_size)
    return sum(simulator.loss(weights, batch) * len(batch) for batch in batches) / len(windows)
