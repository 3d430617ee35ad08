import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from asyncpp.data.prefetch import Prefetcher

CPU = torch.device("cpu")


def read(step: int) -> np.ndarray:
    return np.full((2, 3), step)


def readers() -> list[str]:
    """The threads that read, of all iterations together."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("num_ahead", [0, 1, 2, 100])
def test_every_step_in_order(num_ahead):
    batches = list(Prefetcher(read, range(3, 30, 2), CPU, num_ahead))
    assert [step for step, _ in batches] == list(range(3, 30, 2))
    assert all((tokens == step).all() and tokens.dtype == torch.int64 for step, tokens in batches)


def test_order_holds_whoever_is_slow():
    """Reads and uses that take turns in being the slower."""
    pauses_s = np.random.default_rng(0).uniform(0.0, 0.004, (2, 40))

    def read_slowly(step):
        time.sleep(pauses_s[0, step])
        return read(step)

    seen = []
    for step, tokens in Prefetcher(read_slowly, range(40), CPU, num_ahead=3):
        time.sleep(pauses_s[1, step])
        seen.append((step, int(tokens[0, 0])))
    assert seen == [(step, step) for step in range(40)]


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


@pytest.mark.parametrize("num_ahead", [0, 1, 3])
def test_an_error_in_reading_arrives_in_its_place(num_ahead):
    def fail(step):
        if step == 2:
            raise OSError("gone")
        return read(step)

    batches = iter(Prefetcher(fail, range(5), CPU, num_ahead))
    assert [next(batches)[0], next(batches)[0]] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(batches)
    assert readers() == []
    with pytest.raises(StopIteration):
        next(batches)


def test_an_error_in_the_steps_arrives_too():
    batches = iter(Prefetcher(read, (1 // step for step in [1, 1, 0]), CPU, num_ahead=1))
    assert next(batches)[0] == 1
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert readers() == []


def test_closing_waits_for_the_read_in_progress_and_for_no_other():
    read_steps, begun, release = [], threading.Event(), threading.Event()

    def block(step):
        read_steps.append(step)
        if step == 1:
            begun.set()
            assert release.wait(10)
        return read(step)

    batches = iter(Prefetcher(block, range(100), CPU, num_ahead=50))
    next(batches)
    assert begun.wait(10)
    threading.Timer(0.3, release.set).start()
    batches.close()
    assert read_steps == [0, 1]
    assert readers() == []


def test_no_thread_outlives_an_iteration():
    list(Prefetcher(read, range(5), CPU))
    assert readers() == []
    for step, _ in Prefetcher(read, range(5), CPU):
        if step == 1:
            break
    assert readers() == []
    with pytest.raises(RuntimeError, match="out of memory"):
        for _ in Prefetcher(read, range(5), CPU):
            raise RuntimeError("out of memory")
    assert readers() == []


def test_a_process_that_fails_with_an_iterator_in_hand_ends():
    program = """
import numpy, torch
from asyncpp.data.prefetch import Prefetcher
batches = iter(Prefetcher(lambda step: numpy.zeros((1, 1), int), range(10**9), torch.device("cpu"), 4))
next(batches)
raise SystemExit(3)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 3


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
