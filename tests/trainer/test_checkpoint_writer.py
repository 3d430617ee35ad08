"""Saves in the background hold the state of their own step, of all ranks, and what is not to be kept goes."""

from __future__ import annotations

import shutil
import threading

import pytest
import torch
from checkpoint_cases import IN_BACKGROUND, KEEP_ALL, file_bytes, same_bits, save, state, steps_in

from asyncpp.errors import ConfigError
from asyncpp.trainer.checkpoint import writer
from asyncpp.trainer.checkpoint.config import CheckpointConfig
from asyncpp.trainer.checkpoint.manifest import CheckpointInfo
from asyncpp.trainer.checkpoint.names import step_folder, step_folders
from asyncpp.trainer.checkpoint.reader import newest_valid
from asyncpp.trainer.checkpoint.store import clean_up, retain, start_anew
from asyncpp.trainer.checkpoint.writer import CheckpointWriter


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
