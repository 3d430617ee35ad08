"""Disks that are full or read-only, ranks that stay away, kills: the checkpoints that are there stay as they are."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from checkpoint_cases import (
    IN_BACKGROUND,
    KEEP_ALL,
    KEEP_TWO,
    file_bytes,
    save,
    save_until_killed,
    state,
    steps_in,
    steps_until_killed,
)

from asyncpp.trainer.checkpoint import store, writer
from asyncpp.trainer.checkpoint.manifest import CheckpointInfo
from asyncpp.trainer.checkpoint.reader import newest_valid
from asyncpp.trainer.checkpoint.store import CheckpointFailed, clean_up
from asyncpp.trainer.checkpoint.writer import CheckpointWriter


@contextmanager
def failing_fsync(root):
    with pytest.MonkeyPatch.context() as patch:

        def fsync(descriptor):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "fsync", fsync)
        yield "Input/output error"


@contextmanager
def failing_folder_fsync(root):
    original = os.fsync
    with pytest.MonkeyPatch.context() as patch:

        def fsync(descriptor):
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112  # a Path of it would be resolved
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            original(descriptor)

        patch.setattr(os, "fsync", fsync)
        yield "Invalid argument"


@contextmanager
def no_space_before(root):
    with pytest.MonkeyPatch.context() as patch:
        usage = shutil.disk_usage(root)
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
        yield "100 bytes free and a checkpoint takes"


@contextmanager
def file_too_large(root):
    """The system refuses to let a file grow, in the midst of a write, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield "File too large"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only(root):
    """Root may write everywhere, so for the while nobody does."""
    is_root = os.geteuid() == 0
    root.chmod(0o555)
    if is_root:
        os.seteuid(65534)
    try:
        yield "Permission denied"
    finally:
        if is_root:
            os.seteuid(0)
        root.chmod(0o755)


@pytest.fixture
def root():
    """Below folders that everybody may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


FAULTS = [failing_fsync, failing_folder_fsync, no_space_before, file_too_large, read_only]


@pytest.mark.parametrize("config", [KEEP_ALL, IN_BACKGROUND], ids=["foreground", "background"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_that_fails_is_one_line_and_touches_no_other_checkpoint(root, fault, config):
    save(root, 1, state(1))
    before, lines = file_bytes(root), []
    with CheckpointWriter(root, config, report=lines.append) as saver:
        with fault(root) as what:
            saver.save(CheckpointInfo(2, config={}), state(2))
            saver.wait_copied()
            with pytest.raises(CheckpointFailed, match=what):
                saver.wait()
        assert len(lines) == 1
        assert lines[0].startswith("no checkpoint of step 2: ")
        assert lines[0].endswith("; earlier checkpoints are as they were")
        assert "\n" not in lines[0]
        clean_up(root)
        assert file_bytes(root) == before
        assert newest_valid(root, pytest.fail).info.step == 1

        saver.save(CheckpointInfo(3, config={}), state(3))
        saver.wait()
    assert len(lines) == 1
    assert steps_in(root) == [3, 1]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_that_fails_leaves_nothing_behind(root, fault):
    save(root, 1, state(1))
    with CheckpointWriter(root, KEEP_ALL, report=lambda line: None) as saver, fault(root):
        saver.save(CheckpointInfo(2, config={}), state(2))
    assert [path.name for path in root.iterdir()] == ["step-00000001"]


def test_a_failure_is_told_at_the_next_save_and_not_again(tmp_path):
    lines = []
    with CheckpointWriter(tmp_path, IN_BACKGROUND, report=lines.append) as saver:
        saver.save(CheckpointInfo(1, config={}), state(1))
        saver.wait()
        with failing_fsync(tmp_path):
            saver.save(CheckpointInfo(2, config={}), state(2))
            while not saver._saving.done():
                time.sleep(0.001)
        assert not lines
        saver.save(CheckpointInfo(3, config={}), state(3))
        assert len(lines) == 1
        saver.wait()
    assert len(lines) == 1


def test_older_checkpoints_that_cannot_be_removed_are_reported_and_the_new_one_counts(tmp_path, monkeypatch):
    def retain(*arguments):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(writer, "retain", retain)
    lines = []
    with CheckpointWriter(tmp_path, KEEP_ALL, report=lines.append) as saver:
        saver.save(CheckpointInfo(1, config={}), state(1))
        saver.wait()
    assert lines == [f"cannot remove older checkpoints from {tmp_path} (Permission denied)"]
    assert steps_in(tmp_path) == [1]


def test_no_memory_for_a_copy_is_one_line(tmp_path, monkeypatch):
    def empty(*arguments, **options):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(torch, "empty", empty)
    lines = []
    with CheckpointWriter(tmp_path, IN_BACKGROUND, report=lines.append) as saver:
        saver.save(CheckpointInfo(1, config={}), {"weights/a.weight": torch.ones(10)})
    assert "no host memory for a copy of 40 bytes" in lines[0]


def test_a_rank_that_cannot_write_ends_the_save_of_all(tmp_path):
    save(tmp_path, 1, state(1))
    info, lines = CheckpointInfo(5, config={}), []
    with CheckpointWriter(tmp_path, IN_BACKGROUND, 0, 2, "a", lines.append) as first:
        first.save(info, state(1))
        while not (store.partial_folder(tmp_path, 5, "a", 1) / "rank-0000.json").exists():
            time.sleep(0.001)
        with CheckpointWriter(tmp_path, KEEP_ALL, 1, 2, "a", lines.append) as second, no_space_before(tmp_path):
            second.save(info, state(1))
        with pytest.raises(CheckpointFailed, match="rank 1 could not write"):
            first.wait()
    assert len(lines) == 2
    assert steps_in(tmp_path) == [1]
    assert len(list(tmp_path.iterdir())) == 1


def test_what_other_ranks_wrote_of_a_failed_save_goes_with_the_next(tmp_path):
    with CheckpointWriter(tmp_path, KEEP_ALL, 0, 2, "a", lambda line: None) as first:
        with no_space_before(tmp_path):
            first.save(CheckpointInfo(5, config={}), state(1))
        with CheckpointWriter(tmp_path, KEEP_ALL, 1, 2, "a", pytest.fail) as second:
            second.save(CheckpointInfo(5, config={}), {"weights/b.weight": torch.ones(1)})
            assert len(list(tmp_path.iterdir())) == 1
            second.save(CheckpointInfo(6, config={}), {"weights/b.weight": torch.ones(1)})
        first.save(CheckpointInfo(6, config={}), state(1))
        first.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000006"]


def test_nobody_waits_for_other_ranks_once_training_has_failed(tmp_path):
    lines = []
    started_s = time.perf_counter()
    with (
        pytest.raises(ZeroDivisionError),
        CheckpointWriter(tmp_path, IN_BACKGROUND, 0, 2, "a", lines.append) as saver,
    ):
        saver.save(CheckpointInfo(5, config={}), state(1))
        raise ZeroDivisionError
    assert time.perf_counter() - started_s < 0.1 * writer.OTHER_RANKS_TIMEOUT_S
    assert "rank 1 has not written" in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_stays_away_is_waited_for_so_long(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "OTHER_RANKS_TIMEOUT_S", 0.05)
    lines = []
    with CheckpointWriter(tmp_path, IN_BACKGROUND, 0, 2, "a", lines.append) as saver:
        saver.save(CheckpointInfo(5, config={}), state(1))
        with pytest.raises(CheckpointFailed, match="rank 1 has not written"):
            saver.wait()


@pytest.fixture(scope="module")
def processes():
    """A start method that has torch imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["asyncpp.trainer.checkpoint.writer"])
    return context


def wait_for_a_step_after(root, step):
    deadline_s = time.monotonic() + 30
    while max([0, *steps_in(root)]) <= step:
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def was_cut(root) -> bool:
    return any(path.name.endswith((".partial", ".removed")) for path in root.iterdir())


def test_killed_at_any_moment_the_newest_checkpoint_is_whole(tmp_path, processes):
    draw, newest_step, num_cut = random.Random(0), 0, 0
    for _ in range(20):
        num_before = len(steps_in(tmp_path))
        process = processes.Process(target=save_until_killed, args=(tmp_path,))
        process.start()
        wait_for_a_step_after(tmp_path, newest_step)
        time.sleep(draw.uniform(0.0, 0.05))
        process.kill()
        process.join()

        num_cut += was_cut(tmp_path)
        checkpoint = newest_valid(tmp_path, pytest.fail)
        assert checkpoint.info.step > newest_step
        newest_step = checkpoint.info.step
        assert all((checkpoint.read(name) == newest_step).all() for name in checkpoint.names)
        # a kill between a save and the removals after it leaves one more than there were, never two
        assert len(steps_in(tmp_path)) <= max(2, num_before) + 1
    assert num_cut > 5
    with CheckpointWriter(tmp_path, KEEP_TWO, 0, 1, "a") as saver:
        saver.save(CheckpointInfo(newest_step + 1, config={}), state(0))
    assert steps_in(tmp_path) == [newest_step + 1, newest_step]


def test_one_or_all_ranks_killed_the_newest_checkpoint_has_the_same_step_of_all(tmp_path, processes):
    draw, newest_step, num_cut = random.Random(0), 0, 0
    for launch in range(10):
        clean_up(tmp_path)
        barrier = processes.Barrier(2)
        arguments = [(tmp_path, rank, 2, f"launch{launch}", newest_step, barrier) for rank in range(2)]
        ranks = [processes.Process(target=steps_until_killed, args=each) for each in arguments]
        for rank in ranks:
            rank.start()
        wait_for_a_step_after(tmp_path, newest_step)
        time.sleep(draw.uniform(0.0, 0.05))
        draw.choice(ranks).kill()
        time.sleep(draw.choice([0.0, 0.05]))
        for rank in ranks:
            rank.kill()
            rank.join()

        num_cut += was_cut(tmp_path)
        checkpoint = newest_valid(tmp_path, pytest.fail)
        assert checkpoint.info.step > newest_step
        newest_step = checkpoint.info.step
        assert checkpoint.names == [f"weights/layer{rank}.weight" for rank in range(2)]
        assert all((checkpoint.read(name) == newest_step).all() for name in checkpoint.names)
    assert num_cut > 2
