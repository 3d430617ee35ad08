"""Reads the next batches while the present one is computed, and hands them over on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Prefetcher:
    """Iterates over (step, tokens), tokens being an int64 tensor on ``device``.

    read: what a step reads, such as Batches.batch; it is called in one thread, in order. What it raises is raised
        where its step would have come.
    num_ahead: batches that are read before they are asked for.
    On a GPU the thread copies into pinned memory, from where the transfer does not hold up the computation.
    The thread ends with the iteration, however that ends: an iterator that is left early and kept is to be closed.
    """

    def __init__(
        self, read: Callable[[int], NDArray[np.int64]], steps: Iterable[int], device: torch.device, num_ahead: int = 2
    ) -> None:
        self._read = read
        self._steps = steps
        self._device = device
        self._num_ahead = num_ahead

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        steps = iter(self._steps)
        reader = ThreadPoolExecutor(1, "prefetch")

        def submit(num_steps: int) -> Iterator[tuple[int, Future[Tensor]]]:
            return ((step, reader.submit(self._load, step)) for step in islice(steps, num_steps))

        try:
            pending = deque(submit(1 + self._num_ahead))
            while pending:
                step, tokens = pending.popleft()
                yield step, tokens.result().to(self._device, non_blocking=True)
                pending.extend(submit(1))
        finally:
            reader.shutdown(cancel_futures=True)  # waits for the read in progress only

    def _load(self, step: int) -> Tensor:
        tokens = torch.from_numpy(self._read(step))
        return tokens.pin_memory() if self._device.type == "cuda" else tokens
