"""The delay of every stage, as a rule from batch to weight version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DelayProfile:
    """Batch t differentiates version max(t - delay, 0) of each stage's weights (PipeDream-2BW with delay 1).

    delays: one a stage, in updates.
    """

    delays: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        return len(self.delays)


def version_of(batch: int, delay: int) -> int:
    """The weight version that batch ``batch`` differentiates; version v is the weights after v updates."""
    return max(batch - delay, 0)
