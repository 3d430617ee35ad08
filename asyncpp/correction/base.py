"""Where a correction may act on a delayed gradient's way into the weights.

A correction overrides the moments that it needs; this base class leaves every moment as it is, and so is
``correction=none``. In the order of a batch:

    delay               how stale the weights are that the batch differentiates
    lr_factor           how large the step is
    correct_gradients   what the optimizer sees
    apply               how the optimizer's update u_t reaches the weights
    z_weights           a second reading of the same weights, where the correction has one
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from asyncpp.correction.config import CorrectionConfig
    from asyncpp.optim.base import UpdateRule


class Correction:
    """The delayed update as it is.

    config: the knobs; weights: a part's parameters in canonical order, at their start; delay: the part's
    largest, in updates; num_steps: of the run.
    ``state`` holds one list of tensors a kind, aligned with ``weights``; it is allocated here, never lazily.
    """

    def __init__(self, config: CorrectionConfig, weights: list[Tensor], delay: int, num_steps: int) -> None:
        self.corrects_gradients = config.corrects_gradients
        self.state: dict[str, list[Tensor]] = {}

    def num_state_elements(self) -> int:
        """Measured size of the state."""
        return sum(tensor.numel() for tensors in self.state.values() for tensor in tensors)

    def delay(self, step: int, delay: int) -> int:
        """The delay in updates that holds for batch ``step``, from the configured one."""
        return delay

    def lr_factor(self, step: int, staleness: int) -> float:
        """What the learning rate of this step is multiplied by."""
        return 1.0

    def correct_gradients(self, gradients: list[Tensor], newest: list[Tensor], stale: list[Tensor]) -> list[Tensor]:
        """The gradients that are clipped and given to the optimizer; not called for a batch that is skipped.

        Only for a correction whose config ``corrects_gradients``.

        ``newest`` are the weights that the update will be applied to, ``stale`` those that were differentiated.
        """
        return gradients

    def apply(
        self,
        rule: UpdateRule,
        indices: Sequence[int],
        gradients: list[Tensor],
        weights: list[Tensor],
        lr: float,
        staleness: int,
    ) -> None:
        """Turn x_t into x_{t+1}, in place, for the parameters ``indices`` of the part: x_{t+1} = W(x_t) - u_t.

        ``gradients`` and ``weights`` are theirs; ``rule`` makes u_t of them. ``staleness`` of the batch, in updates.
        """
        rule.step(gradients, weights, lr)

    def z_weights(self, weights: list[Tensor], staleness: int) -> list[Tensor] | None:
        """The weights read at z, or None for a correction that has no such reading.

        ``weights`` are the newest; ``staleness`` is that of the last update.
        """
        return None
