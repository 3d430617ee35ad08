"""Staleness probes: how much a late gradient differs from a fresh one, and one update from the next.

Optional (``trainer.probe_every``): a probed step costs two more passes over its batch, its neighbours a copy of the
weights. Probes read, and change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncpp.pipeline.simulator import Simulator


class StalenessProbe:
    """Probes every ``every`` steps; None never does. To be told of each step before and after its update."""

    def __init__(self, simulator: Simulator, every: int | None) -> None:
        self._simulator = simulator
        self._every = every
        self._groups = _by_layer(simulator.names)
        self._row: dict[str, float] = {}
        self._before: list[Tensor] = []
        self._last_update: list[Tensor] = []

    def before_update(self, step: int, windows: Tensor) -> None:
        """Compare the gradients of the batch at its stale and at the newest weights; remember the latter."""
        if not self._needs_update(step):
            return
        newest = self._simulator.newest_weights()
        if self._due(step):
            fresh = self._simulator.differentiate(newest, windows).gradients
            stale = self._simulator.differentiate(self._simulator.stale_weights(step), windows).gradients
            for group, indices in self._groups.items():
                a, b = _vector(stale, indices), _vector(fresh, indices)
                self._row[f"probe/gradient_cosine/{group}"] = _cosine(a, b)
                self._row[f"probe/gradient_norm_ratio/{group}"] = (a.norm() / b.norm()).item()
        self._before = [weight.clone() for weight in newest]

    def after_update(self, step: int) -> dict[str, float]:
        """The row of a probed step, empty for any other. Cosines in [-1, 1]; the ratio is stale over fresh."""
        if not self._needs_update(step):
            return {}
        newest = self._simulator.newest_weights()
        update = [after - before for after, before in zip(newest, self._before, strict=True)]
        self._before = []
        if not self._due(step):
            self._last_update = update
            return {}
        if self._last_update:
            for group, indices in self._groups.items():
                cosine = _cosine(_vector(update, indices), _vector(self._last_update, indices))
                self._row[f"probe/update_cosine/{group}"] = cosine
        self._last_update = []
        row, self._row = self._row, {}
        return row

    def _due(self, step: int) -> bool:
        return self._every is not None and step % self._every == 0

    def _needs_update(self, step: int) -> bool:
        """A probed step, and the one before it."""
        return self._due(step) or self._due(step + 1)


def _by_layer(names: Sequence[str]) -> dict[str, list[int]]:
    """Positions of the parameters of each layer, and of what stands outside the layers, by name."""
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        parts = name.split(".")
        group = ".".join(parts[:2]) if parts[0] == "layers" else parts[0]
        groups.setdefault(group, []).append(index)
    return groups


def _vector(tensors: Sequence[Tensor], indices: Sequence[int]) -> Tensor:
    return torch.cat([tensors[index].flatten() for index in indices]).double()


def _cosine(a: Tensor, b: Tensor) -> float:
    """NaN where one of them is zero, which has no direction."""
    return (a @ b / (a.norm() * b.norm())).item()
