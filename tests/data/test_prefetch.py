import threading

import numpy as np
import pytest
import torch

from asyncpp.data.prefetch import Prefetcher

CPU = torch.device("cpu")


def read(step: int) -> np.ndarray:
    return np.full((2, 3), step)


@pytest.mark.parametrize("num_ahead", [0, 1, 2, 100])
def test_every_step_in_order(num_ahead):
    batches = list(Prefetcher(read, range(3, 30, 2), CPU, num_ahead))
    assert [step for step, _ in batches] == list(range(3, 30, 2))
    assert all((tokens == step).all() and tokens.dtype == torch.int64 for step, tokens in batches)


def test_reading_runs_ahead_but_not_away():
    read_steps = []
    all_read = threading.Event()

    def record(step):
        read_steps.append(step)
        if step == 3:
            all_read.set()
        return read(step)

    batches = iter(Prefetcher(record, range(100), CPU, num_ahead=3))
    assert next(batches)[0] == 0
    assert all_read.wait(10)
    batches.close()
    assert read_steps == [0, 1, 2, 3]


def test_an_error_in_reading_arrives():
    def fail(step):
        if step == 2:
            raise OSError("gone")
        return read(step)

    batches = iter(Prefetcher(fail, range(5), CPU))
    assert [next(batches)[0], next(batches)[0]] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(batches)


def test_no_steps():
    assert list(Prefetcher(read, [], CPU)) == []


def test_pinned_memory_for_a_gpu():
    if not torch.cuda.is_available():
        loaded = Prefetcher(read, [0], CPU)._load(0)
        assert not loaded.is_pinned()
        return
    device = torch.device("cuda")
    assert Prefetcher(read, [0], device)._load(0).is_pinned()
    ((_, tokens),) = Prefetcher(read, [7], device)
    assert tokens.device.type == "cuda" and (tokens == 7).all()
