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
    State is allocated here, never lazily, so that a checkpoint of step 0 is complete. Every list in ``state``
    has a tensor a weight, of any shape. ``update`` and ``step`` are to be called without autograd (torch.no_grad).
    """

    same_shape: ClassVar[bool] = False  # True: the weights of one rule have one shape, so that it may stack them

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

    def step(self, gradients: Sequence[Tensor], weights: Sequence[Tensor], lr: float) -> None:
        """weights <- W(weights) - u, in place: the same numbers as ``update``, for when no correction needs u.

        A rule whose library has the whole step in one kernel overrides this; u is then never written to memory.
        """
        decay_factor = self.decay_factor(lr)
        for weight, update in zip(weights, self.update(gradients, weights, lr), strict=True):
            weight.mul_(decay_factor).sub_(update)

    @abstractmethod
    def state_copies(self, shape: Sequence[int]) -> float:
        """Documented size of the state that a parameter of this shape has, in copies of the parameter."""

    def new_state(self, name: str, weights: Sequence[Tensor]) -> list[Tensor]:
        """Zeros shaped like ``weights``, kept under ``name``."""
        self.state[name] = [weight.new_zeros(weight.shape) for weight in weights]
        return self.state[name]
