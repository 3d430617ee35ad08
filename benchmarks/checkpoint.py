"""Saving and loading checkpoints over torch.save and torch.load of the same bytes, side by side in one run.

    python benchmarks/checkpoint.py [json=true] [num_megabytes=512 num_tensors=48 num_rounds=5 batch_s=0.5]

save_over_torch_save: a save in the foreground, checksums, fsync and rename included, over torch.save and an fsync of
its file. save_over_torch_save_unsynced: over torch.save alone, which leaves the bytes in the page cache.
load_over_torch_load: finding the newest valid checkpoint, which reads every byte, and copying its tensors into a
model's, over torch.load and the same copy.
async_stall_over_write: how long training stands still for a save in the background, over the time until that is on the
disk. Training is the gradients of a batch, ``batch_s`` long, then an update that changes every tensor; it stands still
in save, and in the wait before the update.
async_slowdown_over_write: what the save costs training in all, so also where two threads are in each other's way: the
time of save, batch and wait beyond that of a batch alone.
async_copy_over_write: the stall where no batch lies between, so that training waits for the whole copy.

The contenders take turns on one thread, and a background thread beside it; the fastest rounds are compared.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from asyncpp.trainer.checkpoint.config import CheckpointConfig
from asyncpp.trainer.checkpoint.manifest import CheckpointInfo
from asyncpp.trainer.checkpoint.reader import newest_valid
from asyncpp.trainer.checkpoint.writer import CheckpointWriter
from common.command import run_benchmark


@dataclass
class Options:
    num_megabytes: int = 512
    num_tensors: int = 48
    num_rounds: int = 5
    batch_s: float = 0.5
    folder: str = ""  # where to write; a temporary folder where empty
    json: bool = False


def writer(root: Path, *, asynchronous: bool) -> CheckpointWriter:
    return CheckpointWriter(root, CheckpointConfig(1, None, 0, asynchronous))


def torch_save(tensors: dict[str, Tensor], path: Path, *, synced: bool) -> None:
    with path.open("wb") as file:
        torch.save(tensors, file)
        if synced:
            file.flush()
            os.fsync(file.fileno())


def timed(run: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


def compute(num_products: int, matrix: Tensor) -> None:
    """Work that reads no tensor of the checkpoint, as the gradients of a batch change none."""
    for _ in range(num_products):
        torch.mm(matrix, matrix)


def measure(folder: Path, options: Options) -> dict[str, float]:
    num_elements = options.num_megabytes * 2**18 // options.num_tensors
    tensors = {f"weights/layer{i}.weight": torch.randn(num_elements) for i in range(options.num_tensors)}
    loaded = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    steps = iter(range(1, 10**6))

    def ours_save() -> None:
        with writer(folder / "ours", asynchronous=False) as foreground:
            foreground.save(CheckpointInfo(next(steps), {}), tensors)
            foreground.wait()

    def ours_load() -> None:
        checkpoint = newest_valid(folder / "ours", print)
        assert checkpoint is not None
        for name, tensor in loaded.items():
            tensor.copy_(checkpoint.read(name))

    def torch_load() -> None:
        theirs = torch.load(folder / "theirs.pt", weights_only=True)
        for name, tensor in loaded.items():
            tensor.copy_(theirs[name])

    times_s: dict[str, list[float]] = {}
    contenders: dict[str, Callable[[], None]] = {
        "save": ours_save,
        "torch_save": lambda: torch_save(tensors, folder / "theirs.pt", synced=True),
        "torch_save_unsynced": lambda: torch_save(tensors, folder / "theirs.pt", synced=False),
        "load": ours_load,
        "torch_load": torch_load,
    }
    for _ in range(options.num_rounds):
        for name, run in contenders.items():
            times_s.setdefault(name, []).append(timed(run))
    fastest = {name: min(times) for name, times in times_s.items()}
    gigabytes = options.num_megabytes / 1024
    return {
        **{f"{name}_gib_per_s": gigabytes / duration_s for name, duration_s in fastest.items()},
        "save_over_torch_save": fastest["save"] / fastest["torch_save"],
        "save_over_torch_save_unsynced": fastest["save"] / fastest["torch_save_unsynced"],
        "load_over_torch_load": fastest["load"] / fastest["torch_load"],
        **measure_asynchronous(folder, options, tensors),
    }


def measure_asynchronous(folder: Path, options: Options, tensors: dict[str, Tensor]) -> dict[str, float]:
    """Stall and slowdown over the time of the write: the medians of rounds with a batch, and of rounds without."""
    matrix = torch.randn(512, 512)
    num_products = max(1, round(options.batch_s / min(timed(lambda: compute(1, matrix)) for _ in range(50))))
    steps = iter(range(1, 10**6))

    def round_of(products: int) -> tuple[float, float]:
        alone_s = timed(lambda: compute(products, matrix))
        started_s = time.perf_counter()
        stall_s = timed(lambda: background.save(CheckpointInfo(next(steps), {}), tensors))
        batch_s = timed(lambda: compute(products, matrix))
        stall_s += timed(background.wait_copied)
        for tensor in tensors.values():
            tensor.add_(1.0)
        background.wait()
        write_s = time.perf_counter() - started_s
        return stall_s / write_s, (stall_s + batch_s - alone_s) / write_s

    with writer(folder / "background", asynchronous=True) as background:
        round_of(num_products)  # allocates the copy's memory, once a run
        stalls, slowdowns = zip(*(round_of(num_products) for _ in range(options.num_rounds)), strict=True)
        copies, _ = zip(*(round_of(0) for _ in range(options.num_rounds)), strict=True)
    return {
        "async_stall_over_write": statistics.median(stalls),
        "async_slowdown_over_write": statistics.median(slowdowns),
        "async_copy_over_write": statistics.median(copies),
    }


def measure_in_a_folder(options: Options) -> dict[str, float]:
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir=options.folder or None))
    try:
        return measure(folder, options)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, Options, measure_in_a_folder))
