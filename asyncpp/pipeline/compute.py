"""How a part of the model is called, the same in the simulator and in a stage's own process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Autocast:
    """Mixed precision: matrix products in ``dtype``, weights, sums of gradients and state as they are.

    dtype: None computes in the weights' own. device: cpu or cuda.
    """

    device: str
    dtype: torch.dtype | None = None

    def __call__(self) -> AbstractContextManager[object]:
        """The context of a forward."""
        return nullcontext() if self.dtype is None else torch.autocast(self.device, self.dtype)
