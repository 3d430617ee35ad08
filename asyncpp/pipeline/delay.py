"""How many updates late a gradient is, for every part of the model and every batch.

Batch t differentiates version max(t - delay, 0) of a part's weights (PipeDream-2BW with delay 1), and its update is
applied to the newest version.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DelayProfile:
    """A delay for every part, the same for all batches.

    delays: in updates, one a part, in the model's order. Where a batch's delay may vary, these are the largest.
    """

    delays: tuple[int, ...]

    @property
    def num_parts(self) -> int:
        return len(self.delays)

    def delay(self, part: int, batch: int) -> int:
        """The delay of ``batch`` in ``part``, in updates."""
        return self.delays[part]


@dataclass(frozen=True)
class SampledDelays(DelayProfile):
    """A delay drawn for every batch, the same in all parts: late messages of a network, say.

    probabilities: of a delay of 0, 1, 2, ... updates. The draw is a function of (seed, batch).
    """

    probabilities: tuple[float, ...]
    seed: int

    def delay(self, part: int, batch: int) -> int:
        generator = np.random.default_rng((self.seed, batch))
        return int(generator.choice(len(self.probabilities), p=self.probabilities))


def version_of(batch: int, delay: int) -> int:
    """The weight version that batch ``batch`` differentiates; version v is the weights after v updates."""
    return max(batch - delay, 0)
