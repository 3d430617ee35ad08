"""A part of the model, consecutive layers, as a stage trains it: its modules, and its state between two updates.

A stage has one part, or with an interleaved schedule several, by chunk; the simulator has the states of all parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from asyncpp.correction.base import Correction
from asyncpp.optim.groups import Optimizer
from asyncpp.pipeline.delay import DelayProfile, version_of
from asyncpp.pipeline.versioned_modules import VersionedModules
from asyncpp.pipeline.weights import WeightVersions

T = TypeVar("T")


@dataclass
class PartState:
    """number: its place in the model. indices: positions of its parameters in the canonical list, which lists here are
    aligned with.

    profile: the configured delays. owners: for each parameter, which of the replicas of this part updates it, where
    they share that work out; None: each of them updates all. replica: this one's number. Optimizer and correction are
    of the parameters that this one updates.
    """

    number: int
    indices: Sequence[int]
    profile: DelayProfile
    versions: WeightVersions
    optimizer: Optimizer
    correction: Correction
    owners: Sequence[int] | None = None
    replica: int = 0

    def own(self, items: Sequence[T]) -> list[T]:
        """Of a list with an item for each parameter, such as its gradient, those that this replica updates."""
        if self.owners is None:
            return list(items)
        return [item for item, owner in zip(items, self.owners, strict=True) if owner == self.replica]

    @property
    def num_parameters(self) -> int:
        return sum(weight.numel() for weight in self.versions.current)

    def version_for(self, batch: int) -> int:
        """The weight version that ``batch`` differentiates in this part."""
        return version_of(batch, self.correction.delay(batch, self.profile.delay(self.number, batch)))

    def z_weights(self) -> list[Tensor] | None:
        """The newest weights as the correction reads them at z, or None where it has no such reading.

        Of the parameters that this replica updates.
        """
        last = self.versions.newest - 1
        staleness = last - self.version_for(last) if last >= 0 else 0
        return self.correction.z_weights(self.own(self.versions.current), staleness)


@dataclass
class Part:
    """A part of the model in a process that computes it. is_first, is_last: of the whole model."""

    state: PartState
    modules: VersionedModules
    is_first: bool
    is_last: bool
