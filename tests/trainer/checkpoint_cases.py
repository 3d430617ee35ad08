"""What the checkpoint tests share: a small state, and ways to save it."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from asyncpp.trainer.checkpoint.config import CheckpointConfig
from asyncpp.trainer.checkpoint.manifest import CheckpointInfo
from asyncpp.trainer.checkpoint.names import step_folders
from asyncpp.trainer.checkpoint.reader import newest_valid
from asyncpp.trainer.checkpoint.store import clean_up
from asyncpp.trainer.checkpoint.writer import CheckpointWriter

KEEP_ALL = CheckpointConfig(keep_last=10**6, keep_every=None, keep_best=0, asynchronous=False)
IN_BACKGROUND = CheckpointConfig(keep_last=10**6, keep_every=None, keep_best=0, asynchronous=True)


def state(seed: int) -> dict[str, Tensor]:
    """Every dtype that a run has, a scalar, a tensor without elements, and one that is not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(12, 7, generator=generator)
    return {
        "weights/embedding.weight": draw,
        f"weights@{seed}/embedding.weight": draw + 1.0,
        "weights/layers.0.q.weight": draw.double().T,
        "weights/layers.0.up.weight": draw.bfloat16(),
        "optimizer/layers.0.q.weight.num_updates": torch.tensor(seed),
        "optimizer/layers.0.q.weight.momentum": torch.tensor([float("nan"), -0.0, float("inf")]),
        "correction/layers.0.q.weight.previous_update": torch.zeros(0, 3),
    }


def save(root: Path, step: int, *parts: Mapping[str, Tensor], val_loss: float | None = None) -> None:
    """A whole checkpoint, a part a rank, in the foreground; the last rank to write makes it visible."""
    info = CheckpointInfo(step, config={"seed": 0}, counters={"data_step": step}, val_loss=val_loss)
    for rank in reversed(range(len(parts))):
        with CheckpointWriter(root, KEEP_ALL, rank, len(parts), launch="test") as writer:
            writer.save(info, parts[rank])
            writer.wait()


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal shape, dtype and bits, so that NaN equals itself and 0 differs from -0."""
    bits = [tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


def steps_in(root: Path) -> list[int]:
    """The steps of the checkpoints below ``root``, the newest first."""
    return [int(folder.name.removeprefix("step-")) for folder in step_folders(root)]


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


KEEP_TWO = CheckpointConfig(keep_last=2, keep_every=None, keep_best=0, asynchronous=True)


def save_until_killed(root: Path) -> None:
    """Go on after the newest checkpoint and save every step, each one's tensors filled with its number."""
    clean_up(root)
    newest = newest_valid(root, print)
    steps_until_killed(root, 0, 1, "a", newest.info.step if newest is not None else 0, None)


def steps_until_killed(
    root: Path, rank: int, num_ranks: int, launch: str, step: int, barrier: Barrier | None
) -> NoReturn:
    """One rank's loop of an update and a save; the ranks begin each update together."""
    torch.set_num_threads(1)
    tensor = torch.full((400_000,), step)
    with CheckpointWriter(root, KEEP_TWO, rank, num_ranks, launch) as writer:
        while True:
            step += 1
            if barrier is not None:
                barrier.wait()
            writer.wait_copied()
            tensor.fill_(step)
            writer.save(CheckpointInfo(step, config={}), {f"weights/layer{rank}.weight": tensor})
