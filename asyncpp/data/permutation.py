"""A seeded permutation of range(size) that is computed, never stored.

A Feistel network is a bijection whatever its round function is: (left, right) -> (right, left + f(right) mod side).
It acts on side * side >= size numbers; those outside the range walk along their cycle until they fall inside
(Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). side is the square root rounded up, so
a walk has hardly more than one step on average. Position n costs the same at n = 0 and at n = 10**12.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

NUM_ROUNDS = 8

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: a bijection of 64-bit words that spreads every bit (Steele et al., OOPSLA 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(positions: NDArray[np.int64], size: int, *key: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Where a permutation of range(size) puts ``positions``, element by element.

    positions: any shape, each in [0, size). key: whole numbers, such as a seed and an epoch, that choose the
    permutation; an array of the shape of ``positions`` chooses one for each element.
    """
    side = np.uint64(math.isqrt(size - 1) + 1)
    hashed = np.zeros(positions.shape, np.uint64)
    for part in key:
        hashed = mix(hashed + np.asarray(part).astype(np.uint64) + _GOLDEN)
    result = _feistel(positions.astype(np.uint64), side, hashed)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], side, hashed[outside])
    return result.astype(np.int64)


def _feistel(values: NDArray[np.uint64], side: np.uint64, key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    left, right = values // side, values % side
    for _ in range(NUM_ROUNDS):
        key = mix(key + _GOLDEN)
        left, right = right, (left + mix(right ^ key) % side) % side
    return left * side + right
