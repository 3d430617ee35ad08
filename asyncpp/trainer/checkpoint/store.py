"""The folder of a run's checkpoints: how one is begun, joined out of its ranks' files and made visible, and which stay.

A checkpoint appears by one rename, after everything in it is on the disk; it goes by one rename, too. So no kill leaves
a half one that could be taken for whole.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from asyncpp.trainer.checkpoint.config import CheckpointConfig
from asyncpp.trainer.checkpoint.manifest import (
    CheckpointDamaged,
    CheckpointInfo,
    Manifest,
    conflicting_tensor,
    read_rank_record,
    write_rank_record,
)
from asyncpp.trainer.checkpoint.names import file_name, step_folder, step_folders, step_of
from asyncpp.trainer.checkpoint.reader import Checkpoint
from asyncpp.trainer.checkpoint.tensor_file import FileRecord

PARTIAL, REMOVED = "partial", "removed"
POLL_S = 0.01


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written; the message says why in one line. Those on disk are as they were."""


def partial_folder(root: Path, step: int, launch: str, attempt: int) -> Path:
    """Where the ranks write the checkpoint of ``step`` until it is whole. attempt: number of the launch's save."""
    return root / f".{step_folder(root, step).name}.{launch}-{attempt}.{PARTIAL}"


def require_space(root: Path, num_bytes: int) -> None:
    """Raise CheckpointFailed unless the disk has room for ``num_bytes`` more."""
    free = shutil.disk_usage(root).free
    if free < num_bytes:
        raise CheckpointFailed(f"{root} has {free:,} bytes free and a checkpoint takes {num_bytes:,}")


def begin(root: Path, step: int, launch: str, attempt: int, rank: int) -> None:
    """Make the folder that partial_folder names, and those above it. Raises OSError.

    The first rank removes what is left of this launch's earlier attempts: they have failed. Another rank may be at
    the next one already.
    """
    partial = partial_folder(root, step, launch, attempt)
    partial.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        for path in root.glob(f".step-*.{launch}-*.{PARTIAL}"):
            number = path.name.removesuffix(f".{PARTIAL}").rpartition("-")[2]
            if number.isdecimal() and int(number) < attempt:
                shutil.rmtree(path, ignore_errors=True)


def hand_in(partial: Path, rank: int, record: FileRecord) -> None:
    """Say that a rank's file is on the disk. Raises OSError."""
    write_rank_record(_record_path(partial, rank), record)


def give_up(partial: Path, rank: int) -> None:
    """Remove what a rank has written, the first rank what all have, and say that nothing will come of it.

    As far as the disk lets us: it has just refused something.
    """
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        return
    with suppress(OSError):
        (partial / file_name(rank)).unlink(missing_ok=True)
        _gave_up_path(partial, rank).touch()


def commit(
    partial: Path, info: CheckpointInfo, num_ranks: int, timeout_s: float, stopped: Callable[[], bool]
) -> Manifest:
    """Wait until every rank has handed in, then make ``partial`` visible as the checkpoint of ``info.step``.

    timeout_s: how long to wait for the other ranks. stopped: asked meanwhile; True ends the waiting.
    Raises CheckpointFailed or OSError, and then what was written is removed.
    """
    root = partial.parent
    try:
        _wait_for_ranks(partial, num_ranks, timeout_s, stopped)
        files = tuple(read_rank_record(_record_path(partial, rank)) for rank in range(num_ranks))
        conflict = conflicting_tensor(files)
        if conflict is not None:
            raise CheckpointFailed(f"the checkpoint of step {info.step} {conflict}")
        manifest = Manifest(info, files)
        manifest.write(partial)
        for rank in range(num_ranks):
            _record_path(partial, rank).unlink()
        _sync_folder(partial)
        final = step_folder(root, info.step)
        if _holds(final, manifest):  # saved twice: what is good stays untouched
            shutil.rmtree(partial)
        else:
            if final.exists():  # this run has passed it over as damaged, and has come to the same step again
                _discard(final)
            partial.rename(final)
    except CheckpointDamaged as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointFailed(str(error)) from None
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync_folder(root)
    _sync_folder(root.parent)
    return manifest


def retain(root: Path, config: CheckpointConfig, step: int) -> None:
    """Remove what ``config`` does not keep, now that ``step`` is on the disk.

    Checkpoints of later steps go too: this run has passed them over, or was started anew. Raises OSError.
    """
    known = {folder: _val_loss(folder) for folder in step_folders(root)}
    ours = [folder for folder in known if (step_of(folder) or 0) <= step]
    kept = set(ours[: config.keep_last])
    if config.keep_every is not None:
        kept |= {folder for folder in ours if (step_of(folder) or 0) % config.keep_every == 0}
    by_loss = sorted((loss, folder) for folder in ours if (loss := known[folder]) is not None)
    kept |= {folder for _, folder in by_loss[: config.keep_best]}
    for folder in known.keys() - kept:
        _discard(folder)


def start_anew(root: Path) -> None:
    """Remove every checkpoint. Raises OSError."""
    clean_up(root)
    for folder in step_folders(root):
        _discard(folder)


def clean_up(root: Path) -> None:
    """Remove what kills have left behind. Only for the one process that holds the run, before its ranks write."""
    if root.is_dir():
        for suffix in (PARTIAL, REMOVED):
            for path in root.glob(f".step-*.{suffix}"):
                shutil.rmtree(path, ignore_errors=True)


def _wait_for_ranks(partial: Path, num_ranks: int, timeout_s: float, stopped: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + timeout_s
    for rank in range(num_ranks):
        while not _record_path(partial, rank).exists():
            if _gave_up_path(partial, rank).exists():
                raise CheckpointFailed(f"rank {rank} could not write its file of {partial}")
            if stopped() or time.monotonic() > deadline_s:
                raise CheckpointFailed(f"rank {rank} has not written its file of {partial}")
            time.sleep(POLL_S)


def _record_path(partial: Path, rank: int) -> Path:
    return partial / f"rank-{rank:04d}.json"


def _gave_up_path(partial: Path, rank: int) -> Path:
    return partial / f"rank-{rank:04d}.gave_up"


def _holds(folder: Path, manifest: Manifest) -> bool:
    """Whether ``folder`` is a checkpoint of these very bytes."""
    try:
        checkpoint = Checkpoint.open(folder)
        checkpoint.verify()
    except CheckpointDamaged:
        return False
    return checkpoint.manifest == manifest


def _val_loss(folder: Path) -> float | None:
    try:
        return Manifest.read(folder).info.val_loss
    except CheckpointDamaged:
        return None


def _discard(folder: Path) -> None:
    """Take a checkpoint out of sight at once, then remove it."""
    hidden = folder.with_name(f".{folder.name}.{uuid4().hex[:8]}.{REMOVED}")
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """See the names in ``folder`` onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
