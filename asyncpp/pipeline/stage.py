"""The training state of one stage between two updates: weight versions, optimizer and correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from asyncpp.correction.base import Correction
from asyncpp.optim.groups import Optimizer
from asyncpp.pipeline.delay import DelayProfile, version_of
from asyncpp.pipeline.weights import WeightVersions


@dataclass
class StageState:
    """stage: its number. indices: positions of its parameters in the canonical list, which lists here are aligned with.

    profile: the configured delays.
    """

    stage: int
    indices: Sequence[int]
    profile: DelayProfile
    versions: WeightVersions
    optimizer: Optimizer
    correction: Correction

    @property
    def num_parameters(self) -> int:
        return sum(weight.numel() for weight in self.versions.current)

    def version_for(self, batch: int) -> int:
        """The weight version that ``batch`` differentiates on this stage."""
        return version_of(batch, self.correction.delay(batch, self.profile.delay(self.stage, batch)))

    def z_weights(self) -> list[Tensor] | None:
        """The newest weights as the correction reads them at z, or None where it has no such reading."""
        last = self.versions.newest - 1
        staleness = last - self.version_for(last) if last >= 0 else 0
        return self.correction.z_weights(self.versions.current, staleness)
