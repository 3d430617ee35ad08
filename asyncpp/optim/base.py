"""What an optimizer is here: update rules over lists of tensors, grouped by the role of the parameters.

A rule returns the update u instead of changing the weights, so that a correction can act on u
(x_{t+1} = W(x_t) - u_t, where W is decoupled weight decay) without a second copy of the parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from asyncpp.optim.config import RuleConfig


class UpdateRule(ABC):
    """One optimizer's rule, and its state, for the tensors that it updates in one call.

    config: the knobs; weights: the tensors, of one dtype and device, which are read for shape, dtype and device only.
    State is allocated here, never lazily, so that a checkpoint of step 0 is complete. Every list in ``state``
    has a tensor a weight, of any shape. State and arithmetic are in ``dtype``, at least fp32: a moment in bf16 would
    lose what a decay rate of 0.999 adds to it. The methods are to be called without autograd (torch.no_grad).
    """

    max_elements_on_cpu: ClassVar[int] = 2**19  # of one rule's weights: with state and workspace near the cache

    def __init__(self, config: RuleConfig, weights: Sequence[Tensor]) -> None:
        self.weight_decay = config.weight_decay
        self.needs_fresh_gradients = config.needs_fresh_gradients
        self.num_updates = 0
        self.dtype = torch.promote_types(weights[0].dtype, torch.float32)
        self.state: dict[str, list[Tensor]] = {}

    def update(self, gradients: Sequence[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        """Advance the state by one step and return u, a tensor a weight.

        u holds everything that the optimizer would subtract from the weights, learning rate included and
        decoupled weight decay excluded. The tensors of u are new, for the caller to keep or to change;
        ``gradients`` and ``weights`` are left as they are and not kept.
        """
        self.num_updates += 1
        updates = self.compute([gradient.to(self.dtype) for gradient in gradients], weights, lr)
        return [update.to(weight.dtype) for update, weight in zip(updates, weights, strict=True)]

    @abstractmethod
    def compute(self, gradients: list[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        """What ``update`` does, from gradients in ``dtype`` to u in ``dtype``; num_updates counts this update."""

    def decay_factor(self, lr: float) -> float:
        """What W multiplies the weights by, before the u of the last ``update`` is subtracted."""
        return 1.0 - lr * self.weight_decay

    def step(self, gradients: Sequence[Tensor], weights: Sequence[Tensor], lr: float) -> None:
        """weights <- W(weights) - u, in place: for when nothing else needs u.

        A rule whose library has the whole step in one kernel overrides this, with the same result to the bit.
        """
        updates = self.update(gradients, weights, lr)
        decay_factor = self.decay_factor(lr)
        for weight, update in zip(weights, updates, strict=True):
            weight.mul_(decay_factor).sub_(update)

    def observe_fresh_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Take the same batch's gradients at the newest weights; only where the config ``needs_fresh_gradients``."""
        raise NotImplementedError(f"{type(self).__name__} has no use for fresh gradients")

    def new_state(self, name: str, weights: Sequence[Tensor]) -> list[Tensor]:
        """Zeros shaped like ``weights``, kept under ``name``."""
        self.state[name] = [torch.zeros_like(weight, dtype=self.dtype) for weight in weights]
        return self.state[name]


class ElementwiseRule(UpdateRule):
    """A rule that treats every element alike and sees its weights as one vector: few operations for many tensors."""

    def __init__(self, config: RuleConfig, weights: Sequence[Tensor]) -> None:
        super().__init__(config, weights)
        self._shapes = [weight.shape for weight in weights]
        self._device = weights[0].device

    @abstractmethod
    def update_vector(self, gradient: Tensor, lr: float) -> Tensor:
        """u of all the elements. ``gradient`` is a copy, to be overwritten freely."""

    def compute(self, gradients: list[Tensor], weights: Sequence[Tensor], lr: float) -> list[Tensor]:
        return self.pieces(self.update_vector(self.vector(gradients), lr))

    def new_vector_state(self, name: str) -> Tensor:
        """Zeros, an element for every element of the weights; ``state`` has views of them under ``name``."""
        size = sum(shape.numel() for shape in self._shapes)
        vector = torch.zeros(size, dtype=self.dtype, device=self._device)
        self.state[name] = self.pieces(vector)
        return vector

    def vector(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.flatten() for tensor in tensors])

    def pieces(self, vector: Tensor) -> list[Tensor]:
        sizes = [shape.numel() for shape in self._shapes]
        return [piece.view(shape) for piece, shape in zip(vector.split(sizes), self._shapes, strict=True)]
