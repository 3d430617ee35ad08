"""What the gradients' norms decide about a batch: the factor that its gradients are scaled by, or to skip it.

Every part decides for itself, with the same result, from the norms of single parameters: those of its own and, for
what it wants to wait for, those of the whole model. The squares are summed in canonical order of the parameters, in
fp64, so the sum depends neither on the split nor on who computes it. No torch here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

Norms = Mapping[int, float]  # position of a parameter in the canonical list -> norm of its gradient


@dataclass(frozen=True)
class Decision:
    """clip_factor: what the gradients are multiplied by; skipped: they are not finite, and u is zero."""

    clip_factor: float
    skipped: bool


def total_norm(norms: Norms) -> float:
    """The norm of all these gradients together."""
    return math.sqrt(sum(norms[index] ** 2 for index in sorted(norms)))


class Clipping(ABC):
    """max_norm: the limit of the norm; None never scales."""

    waits_for_all: ClassVar[bool] = False  # True: a part asks for the whole model's norms of the same batch
    asks_for_last: ClassVar[bool] = False  # True: for those of the batch before, which a checkpoint then keeps

    def __init__(self, max_norm: float | None) -> None:
        self.max_norm = max_norm

    @abstractmethod
    def decide(self, batch: int, own: Norms, whole: Callable[[int], Norms | None]) -> Decision:
        """own: of the deciding part's parameters, for ``batch``.

        whole: the norms of all parameters for this batch or the one before; it waits until they are there. None for
        the one before, where there is none. Raises LookupError where this batch's are asked for and not there.
        """

    def _scaled(self, norm: float) -> Decision:
        if not math.isfinite(norm):
            return Decision(clip_factor=1.0, skipped=True)
        if self.max_norm is None or norm <= self.max_norm:
            return Decision(clip_factor=1.0, skipped=False)
        return Decision(self.max_norm / norm, skipped=False)


class ByGlobalNorm(Clipping):
    """By the norm of the whole model's gradient, over all parts and replicas."""

    waits_for_all = True

    def decide(self, batch: int, own: Norms, whole: Callable[[int], Norms | None]) -> Decision:
        norms = whole(batch)
        if norms is None:
            raise LookupError(f"the norms of batch {batch} are not there")
        return self._scaled(total_norm(norms))


class Never(ByGlobalNorm):
    """No scaling; a gradient that is not finite in one part is skipped in all of them."""

    def __init__(self, max_norm: float | None) -> None:
        super().__init__(None)


class ByStageNorm(Clipping):
    """Every part by the norm of its own gradient, and skipping by itself: what a pipeline does that never waits.

    So every stage by its own, but for an interleaved schedule, whose stages have several parts.
    """

    def decide(self, batch: int, own: Norms, whole: Callable[[int], Norms | None]) -> Decision:
        return self._scaled(total_norm(own))


class ByPreviousNorm(Clipping):
    """By the whole model's norm one batch ago, which costs no waiting; the first batch is not scaled.

    A part skips a batch whose own gradient is not finite, and a norm that was not finite scales nothing.
    """

    asks_for_last = True

    def decide(self, batch: int, own: Norms, whole: Callable[[int], Norms | None]) -> Decision:
        if not math.isfinite(total_norm(own)):
            return Decision(clip_factor=1.0, skipped=True)
        previous = whole(batch - 1)
        norm = total_norm(previous) if previous is not None else 0.0
        return self._scaled(norm if math.isfinite(norm) else 0.0)


CLIPPINGS: dict[str, type[Clipping]] = {
    "global": ByGlobalNorm,
    "stage": ByStageNorm,
    "previous_step": ByPreviousNorm,
    "none": Never,
}
