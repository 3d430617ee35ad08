"""The weight versions that batches still need.

Version v is the weights after v updates. Under a delay tau, batch t reads version max(t - tau, 0) and its update
makes version t + 1 out of version t. So tau + 1 versions are alive at most, and the oldest one's memory is used
again for the newest. Each version is a list of tensors of its own: a version that a batch is reading never changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class WeightVersions:
    """weights: version 0, kept and changed from here on; max_delay: the largest tau, in updates."""

    def __init__(self, weights: Sequence[Tensor], max_delay: int) -> None:
        self.newest = 0
        self._capacity = max_delay + 1
        self._versions: deque[list[Tensor]] = deque([list(weights)])  # oldest first, newest last

    @property
    def oldest(self) -> int:
        return self.newest - len(self._versions) + 1

    def at(self, version: int) -> list[Tensor]:
        """The tensors of ``version``. Raises LookupError when it is no longer, or not yet, there."""
        if not self.oldest <= version <= self.newest:
            raise LookupError(f"weight version {version} is not held, only {self.oldest} to {self.newest}")
        return self._versions[version - self.oldest]

    @property
    def current(self) -> list[Tensor]:
        """The tensors of the newest version."""
        return self._versions[-1]

    def restore(self, newest: int, read: Callable[[int], Sequence[Tensor]]) -> None:
        """Hold ``newest`` and the versions before it that batches still need, with the values of read(version)."""
        weights = self._versions[-1]
        held = range(max(newest - self._capacity + 1, 0), newest + 1)
        self._versions = deque(
            weights if version == newest else [torch.empty_like(weight) for weight in weights] for version in held
        )
        self.newest = newest
        for version, tensors in zip(held, self._versions, strict=True):
            torch._foreach_copy_(tensors, list(read(version)))

    def open_next(self) -> list[Tensor]:
        """Make the next version, as a copy of the newest, for an update to change in place.

        With no delay there is one version, and it is changed where it stands.
        """
        newest = self._versions[-1]
        if len(self._versions) == self._capacity:
            following = self._versions.popleft()
        else:
            following = [torch.empty_like(weight) for weight in newest]
        if following is not newest:
            torch._foreach_copy_(following, newest)
        self._versions.append(following)
        self.newest += 1
        return following
