"""Which layers go to which stage: the split whose slowest stage is fastest, exactly, or one that the user gives.

The pipeline is as fast as its slowest stage, so an uneven split costs as much as a bubble does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncpp.errors import ConfigError, check_count, require


def split_layers(
    costs: Sequence[float],
    num_stages: int,
    memory: Sequence[float] | Sequence[Sequence[float]] | None = None,
    memory_limit: float | Sequence[float] | None = None,
    key: str = "pipeline.num_stages",
) -> tuple[int, ...]:
    """The number of consecutive layers of every stage that makes the largest sum of ``costs`` smallest.

    costs: measured or estimated time of each layer, in the order of the model; the embedding and the head are layers
    of their own here, the first and the last. num_stages: parts to make; for several chunks a stage, parts in all.
    memory: bytes of each layer, or, because a stage's place decides how many versions and activations it keeps, a row
    of them for each stage. memory_limit: bytes of a stage, or one number for each.
    Every stage gets at least one layer; of equally good splits, the one with the fewest layers on the last stages.

    By dynamic programming over (stage, layers so far), O(num_stages * num_layers ** 2). Raises ConfigError where
    there are fewer layers than stages or no split fits into memory; ``key`` names what the user has set.
    """
    num_layers = len(costs)
    check_count(key, num_stages)
    require(num_stages <= num_layers, key, num_stages, f"expected at most one stage for each of {num_layers} layers")
    before = np.concatenate(([0.0], np.cumsum(np.asarray(costs, dtype=np.float64))))
    usage = np.zeros(num_layers) if memory is None else np.asarray(memory, dtype=np.float64)
    usage = np.broadcast_to(usage, (num_stages, num_layers))
    limits = np.broadcast_to(np.inf if memory_limit is None else np.asarray(memory_limit, np.float64), (num_stages,))

    best = np.full(num_layers + 1, np.inf)  # best[n]: the slowest of the stages so far, which hold n layers
    best[0] = 0.0
    cuts = np.zeros((num_stages, num_layers + 1), dtype=np.int64)  # where the stage that ends at n begins
    for stage in range(num_stages):
        used = np.concatenate(([0.0], np.cumsum(usage[stage])))
        following = np.full(num_layers + 1, np.inf)
        for end in range(stage + 1, num_layers + 1):
            slowest = np.maximum(best[:end], before[end] - before[:end])
            slowest[used[end] - used[:end] > limits[stage]] = np.inf
            cuts[stage, end] = len(slowest) - 1 - np.argmin(slowest[::-1])
            following[end] = slowest[cuts[stage, end]]
        best = following
    if not np.isfinite(best[num_layers]):
        raise ConfigError(key, num_stages, "no split of the layers into so many stages fits into memory")

    sizes: list[int] = []
    end = num_layers
    for stage in reversed(range(num_stages)):
        sizes.append(end - int(cuts[stage, end]))
        end = int(cuts[stage, end])
    return tuple(reversed(sizes))


def check_split(sizes: Sequence[int], num_layers: int, num_stages: int, key: str = "pipeline.split") -> None:
    """Raise ConfigError unless ``sizes``, layers of each stage, leaves none of the model's layers out."""
    require(len(sizes) == num_stages, key, list(sizes), f"expected a number of layers for each of {num_stages} stages")
    require(all(size >= 1 for size in sizes), key, list(sizes), "expected at least one layer on every stage")
    require(
        sum(sizes) == num_layers, key, list(sizes), f"expected numbers that add up to the model's {num_layers} layers"
    )
