"""Which source each sample of a mixture comes from: fixed by the weights, evenly spread, computed for any sample.

The first source takes its share of all samples, the second its share of the rest, and so on. A share w takes sample n
exactly when floor((n + 1) w) > floor(n w), so among the first n samples it has floor(n w) of them, never one off.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESOLUTION = 2**20  # shares are counted in millionths, in whole numbers: 2**42 samples fit


def assign(samples: NDArray[np.int64], weights: Sequence[float]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The source of each sample, and the sample's number within that source: two arrays of the shape of ``samples``."""
    sources = np.full(samples.shape, len(weights) - 1)
    numbers = samples.copy()  # of a sample among those that the sources before have left
    left = np.ones(samples.shape, bool)
    for source, weight in enumerate(weights[:-1]):
        share = round(weight / sum(weights[source:]) * RESOLUTION)
        before = numbers * share // RESOLUTION
        taken = left & ((numbers + 1) * share // RESOLUTION > before)
        left &= ~taken
        sources[taken] = source
        numbers = np.where(taken, before, np.where(left, numbers - before, numbers))
    return sources, numbers


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """``total`` shared out by weight, as assign does it for samples 0 to total - 1."""
    sources, _ = assign(np.arange(total), weights)
    return np.bincount(sources, minlength=len(weights)).tolist()
