"""Saves in the background hold the state of their own step, and whatever fails leaves the checkpoints on disk alone."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from checkpoint_cases import (
    IN_BACKGROUND,
    KEEP_ALL,
    file_bytes,
    same_bits,
    save,
    save_until_killed,
    state,
    steps_until_killed,
)

from asyncpp.errors import ConfigError
from asyncpp.trainer.checkpoint import store, writer
from asyncpp.trainer.checkpoint.config import CheckpointConfig
from asyncpp.trainer.checkpoint.manifest import CheckpointInfo
from asyncpp.trainer.checkpoint.names import step_folder, step_folders, step_of
from asyncpp.trainer.checkpoint.reader import newest_valid
from asyncpp.trainer.checkpoint.store import CheckpointFailed, clean_up, retain, start_anew
from asyncpp.trainer.checkpoint.writer import CheckpointWriter


def steps_in(root) -> list[int]:
    return [step_of(folder) for folder in step_folders(root)]


@pytest.fixture
def held_writes(monkeypatch):
    """Writing waits for this event; copying does not."""
    event = threading.Event()
    original = writer.write_tensors

    def write_tensors(*arguments):
        assert event.wait(10)
        return original(*arguments)

    monkeypatch.setattr(writer, "write_tensors", write_tensors)
    yield event
    event.set()


def test_a_save_holds_what_was_there_when_it_began(tmp_path, held_writes):
    tensors = state(1)
    with CheckpointWriter(tmp_path, IN_BACKGROUND) as saver:
        saver.save(CheckpointInfo(1, config={}), tensors)
        saver.wait_copied()
        for tensor in tensors.values():
            tensor.fill_(7)
        assert steps_in(tmp_path) == []
        held_writes.set()
        saver.wait()
        checkpoint = newest_valid(tmp_path, pytest.fail)
        assert all(same_bits(checkpoint.read(name), tensor) for name, tensor in state(1).items())


def test_the_copy_is_made_beside_training_and_waited_for_before_a_change(tmp_path, monkeypatch):
    may_copy, copied = threading.Event(), []
    original = writer._HostBuffer.copy

    def copy(buffer, *arguments):
        assert may_copy.wait(10)
        original(buffer, *arguments)
        copied.append(True)

    monkeypatch.setattr(writer._HostBuffer, "copy", copy)
    with CheckpointWriter(tmp_path, IN_BACKGROUND) as saver:
        saver.save(CheckpointInfo(1, config={}), state(1))
        assert not copied
        threading.Timer(0.05, may_copy.set).start()
        saver.wait_copied()
        assert copied


def test_saves_follow_one_another_and_each_holds_its_own_step(tmp_path):
    tensors = {f"weights/layer{i}.weight": torch.zeros(10_000) for i in range(4)}
    with CheckpointWriter(tmp_path, IN_BACKGROUND, report=pytest.fail) as saver:
        for step in range(1, 21):
            saver.wait_copied()
            for tensor in tensors.values():
                tensor.fill_(step)
            saver.save(CheckpointInfo(step, config={}), tensors)
        saver.wait()
        assert sum(thread.name.startswith("checkpoint") for thread in threading.enumerate()) == 1
    assert steps_in(tmp_path) == list(range(20, 0, -1))
    for folder in step_folders(tmp_path):
        checkpoint = newest_valid(tmp_path, pytest.fail)
        assert all(torch.equal(checkpoint.read(name), torch.full((10_000,), checkpoint.info.step)) for name in tensors)
        shutil.rmtree(folder)


def test_the_next_save_waits_for_the_one_before(tmp_path, held_writes):
    with CheckpointWriter(tmp_path, IN_BACKGROUND) as saver:
        saver.save(CheckpointInfo(1, config={}), state(1))
        threading.Timer(0.1, held_writes.set).start()
        saver.save(CheckpointInfo(2, config={}), state(2))
        assert steps_in(tmp_path)[-1] == 1
        saver.wait()
    assert steps_in(tmp_path) == [2, 1]


def test_the_copy_takes_another_layout(tmp_path):
    with CheckpointWriter(tmp_path, IN_BACKGROUND) as saver:
        for step, tensors in enumerate((state(1), {"weights/a.weight": torch.ones(3)}, state(2))):
            saver.save(CheckpointInfo(step, config={}), tensors)
            saver.wait()
            checkpoint = newest_valid(tmp_path, pytest.fail)
            assert sorted(checkpoint.names) == sorted(tensors)
            assert all(same_bits(checkpoint.read(name), tensor) for name, tensor in tensors.items())


def test_gradients_may_be_wanted_of_what_is_saved(tmp_path):
    leaf = torch.ones(3, requires_grad=True)
    for config in (KEEP_ALL, IN_BACKGROUND):
        root = tmp_path / str(config.asynchronous)
        with CheckpointWriter(root, config) as saver:
            saver.save(CheckpointInfo(1, config={}), {"weights/a.weight": leaf})
            saver.wait()
        assert torch.equal(newest_valid(root, pytest.fail).read("weights/a.weight"), torch.ones(3))


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


@pytest.mark.parametrize(
    "config, kept",
    [
        (CheckpointConfig(keep_last=1, keep_every=None, keep_best=0, asynchronous=False), [60]),
        (CheckpointConfig(keep_last=2, keep_every=None, keep_best=0, asynchronous=False), [60, 50]),
        (CheckpointConfig(keep_last=1, keep_every=20, keep_best=0, asynchronous=False), [60, 40, 20]),
        (CheckpointConfig(keep_last=1, keep_every=None, keep_best=1, asynchronous=False), [60, 30]),
        (CheckpointConfig(keep_last=2, keep_every=None, keep_best=2, asynchronous=False), [60, 50, 30, 20]),
        (CheckpointConfig(keep_last=9, keep_every=None, keep_best=0, asynchronous=False), [60, 50, 40, 30, 20, 10]),
    ],
)
def test_what_is_kept(tmp_path, config, kept):
    losses = {10: 4.0, 20: 3.5, 30: 3.0, 40: 3.6, 50: None, 60: 3.7}
    with CheckpointWriter(tmp_path, config, report=pytest.fail) as saver:
        for step, loss in losses.items():
            saver.save(CheckpointInfo(step, config={}, val_loss=loss), state(1))
    assert steps_in(tmp_path) == kept
    assert len(list(tmp_path.iterdir())) == len(kept)


def test_checkpoints_that_were_passed_over_go_when_training_has_gone_on(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step, state(step))
    (step_folder(tmp_path, 30) / "rank-0000.safetensors").unlink()
    retain(tmp_path, KEEP_ALL, step=20)
    assert steps_in(tmp_path) == [20, 10]


def test_a_step_that_is_saved_twice_is_left_alone_unless_it_differs(tmp_path):
    save(tmp_path, 10, state(1))
    file = step_folder(tmp_path, 10) / "rank-0000.safetensors"
    inode = file.stat().st_ino
    save(tmp_path, 10, state(1))
    assert file.stat().st_ino == inode
    save(tmp_path, 10, state(2))
    checkpoint = newest_valid(tmp_path, pytest.fail)
    assert all(same_bits(checkpoint.read(name), tensor) for name, tensor in state(2).items())
    assert len(list(tmp_path.iterdir())) == 1


def test_start_anew_leaves_no_checkpoint(tmp_path):
    for step in (10, 20):
        save(tmp_path, step, state(1))
    (tmp_path / ".step-00000030.abc-0.partial").mkdir()
    start_anew(tmp_path)
    start_anew(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_no_memory_for_a_copy_is_one_line(tmp_path, monkeypatch):
    def empty(*arguments, **options):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(torch, "empty", empty)
    lines = []
    with CheckpointWriter(tmp_path, IN_BACKGROUND, report=lines.append) as saver:
        saver.save(CheckpointInfo(1, config={}), {"weights/a.weight": torch.ones(10)})
    assert "no host memory for a copy of 40 bytes" in lines[0]


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(tmp_path):
    save(tmp_path, 10, state(1))
    (step_folder(tmp_path, 10) / "rank-0000.safetensors").write_bytes(b"")
    save(tmp_path, 10, state(2))
    checkpoint = newest_valid(tmp_path, pytest.fail)
    assert all(same_bits(checkpoint.read(name), tensor) for name, tensor in state(2).items())
    assert len(list(tmp_path.iterdir())) == 1


def test_clean_up_removes_what_kills_left_and_nothing_else(tmp_path):
    save(tmp_path, 10, state(1))
    whole = file_bytes(tmp_path)
    for name in (".step-00000020.abc-0.partial", ".step-00000005.abc.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0000.safetensors").write_bytes(b"half")
    (tmp_path / "mine.partial").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    clean_up(tmp_path)
    clean_up(tmp_path / "none")
    assert file_bytes(tmp_path) == {**whole, "notes.txt": b"mine"}
    assert (tmp_path / "mine.partial").is_dir()


def test_a_checkpoint_appears_when_its_last_rank_has_written(tmp_path):
    tensors = [{f"weights/layer{rank}.weight": torch.full((10,), rank)} for rank in range(3)]
    info = CheckpointInfo(5, config={}, world={"num_stages": 3})
    savers = [CheckpointWriter(tmp_path, IN_BACKGROUND, rank, 3, "a", pytest.fail) for rank in range(3)]
    for rank in (0, 2):
        savers[rank].save(info, tensors[rank])
    savers[2].wait()
    assert steps_in(tmp_path) == []
    savers[1].save(info, tensors[1])
    savers[0].wait()
    checkpoint = newest_valid(tmp_path, pytest.fail)
    assert checkpoint.info.world == {"num_stages": 3}
    assert all(same_bits(checkpoint.read(name), t) for part in tensors for name, t in part.items())
    assert sorted(path.name for path in step_folder(tmp_path, 5).iterdir()) == [
        "manifest.json",
        "rank-0000.safetensors",
        "rank-0001.safetensors",
        "rank-0002.safetensors",
    ]
    for saver in savers:
        saver.__exit__(None, None, None)


def test_files_of_another_launch_are_not_taken_for_this_one(tmp_path):
    info = CheckpointInfo(5, config={})
    for launch, value in (("old", 1.0), ("new", 2.0)):
        with CheckpointWriter(tmp_path, KEEP_ALL, 1, 2, launch, pytest.fail) as saver:
            saver.save(info, {"weights/b.weight": torch.tensor([value])})
    with CheckpointWriter(tmp_path, KEEP_ALL, 0, 2, "new", pytest.fail) as saver:
        saver.save(info, {"weights/a.weight": torch.zeros(1)})
    assert newest_valid(tmp_path, pytest.fail).read("weights/b.weight").item() == 2.0


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


def test_a_rank_may_be_ahead_of_the_first_by_a_save(tmp_path):
    parts = [{f"weights/layer{rank}.weight": torch.ones(5)} for rank in range(2)]
    with CheckpointWriter(tmp_path, KEEP_ALL, 1, 2, "a", pytest.fail) as ahead:
        for step in (1, 2):
            ahead.save(CheckpointInfo(step, config={}), parts[1])
    with CheckpointWriter(tmp_path, KEEP_ALL, 0, 2, "a", pytest.fail) as first:
        for step in (1, 2):
            first.save(CheckpointInfo(step, config={}), parts[0])
            first.wait()
    assert steps_in(tmp_path) == [2, 1]


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


@pytest.mark.parametrize("launch", ["../a", "a.b", "a/b", "a b"])
def test_a_launch_cannot_lead_out_of_the_folder(tmp_path, launch):
    with pytest.raises(ConfigError, match="expected letters and digits"):
        CheckpointWriter(tmp_path, KEEP_ALL, launch=launch)


@pytest.mark.parametrize("name, value", [("keep_last", 0), ("keep_every", 0), ("keep_best", -1)])
def test_a_policy_that_keeps_nothing_is_refused(name, value):
    config = CheckpointConfig(keep_last=1, keep_every=None, keep_best=0, asynchronous=False)
    config.check("trainer.checkpoint")
    setattr(config, name, value)
    with pytest.raises(ConfigError, match=rf"trainer\.checkpoint\.{name}={value}"):
        config.check("trainer.checkpoint")


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
        assert len(steps_in(tmp_path)) <= 3
    assert num_cut > 5


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
