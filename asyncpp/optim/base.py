"""What an optimizer is here: update rules over lists of tensors, grouped by the role of the parameters.

A rule returns the update u instead of changing the weights, so that a correction can act on u
(x_{t+1} = W(x_t) - u_t, where W is decoupled weight decay) without a second copy of the parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from asyncpp.optim.config import RuleConfig


class UpdateRule(ABC):
    """One optimizer's rule, and its state, for the tensors that it updates in one call.

    config: the knobs; weights: the tensors, which are read for shape, dtype and device only.
    State is allocated here, never lazily, so that a checkpoint of step 0 is complete.
    """

    state_copies: ClassVar[float]  # documented size of the state, in copies of the parameters

    def __init__(self, config: RuleConfig, weights: Sequence[Tensor]) -> None:
        self.weight_decay = config.weight_decay
        self.num_updates = 0
        self.state: dict[str, list[Tensor]] = {}

    @abstractmethod
    def update(self, gradients: Sequence[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        """Advance the state by one step and return u, a tensor a weight.

        u holds everything that the optimizer would subtract from the weights, learning rate included and
        decoupled weight decay excluded. The tensors of u are new or workspace of the rule, valid until the
        next call; ``gradients`` and ``weights`` are left as they are.
        """

    def decay_factor(self, lr: float) -> float:
        """What W multiplies the weights by, before u is subtracted."""
        return 1.0 - lr * self.weight_decay

    def new_state(self, name: str, weights: Sequence[Tensor]) -> list[Tensor]:
        """Zeros shaped like ``weights``, kept under ``name``."""
        self.state[name] = [weight.new_zeros(weight.shape) for weight in weights]
        return self.state[name]
