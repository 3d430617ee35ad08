"""Contenders by turns in one process: whatever else the machine does falls on all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np


def race(
    contenders: Mapping[str, Callable[[], object]],
    num_rounds: int,
    quantile: float = 0.25,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Each one's ``quantile`` of seconds by ``clock``, over rounds of one call each, after one to warm up."""
    times_s: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(num_rounds + 1):
        for name, run in contenders.items():
            start_s = clock()
            run()
            if round_ > 0:
                times_s[name].append(clock() - start_s)
    return {name: float(np.quantile(times, quantile)) for name, times in times_s.items()}
