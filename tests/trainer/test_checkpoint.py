"""A checkpoint gives back, to the bit, what was saved, however many ranks wrote it, or it is not opened."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest
import torch
from checkpoint_cases import file_bytes, same_bits, save, state
from safetensors.torch import load_file

from asyncpp.errors import ConfigError
from asyncpp.sealed import seal, unseal
from asyncpp.trainer.checkpoint.convert import convert
from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged, CheckpointInfo, Manifest
from asyncpp.trainer.checkpoint.names import (
    MANIFEST_FILE,
    correction_name,
    is_tensor_name,
    optimizer_name,
    step_folder,
    step_folders,
    weight_name,
)
from asyncpp.trainer.checkpoint.reader import Checkpoint, newest_valid
from asyncpp.trainer.checkpoint.store import CheckpointFailed


def read_all(checkpoint):
    return {name: checkpoint.read(name) for name in checkpoint.names}


def test_every_tensor_comes_back_to_the_bit(tmp_path):
    save(tmp_path, 100, state(3))
    checkpoint = newest_valid(tmp_path, pytest.fail)
    assert checkpoint.info.step == 100
    assert checkpoint.info.counters == {"data_step": 100}
    assert set(checkpoint.names) == set(state(3))
    assert all(same_bits(checkpoint.read(name), tensor) for name, tensor in state(3).items())
    assert [checkpoint.record(name).shape for name in checkpoint.names] == [
        tuple(tensor.shape) for tensor in read_all(checkpoint).values()
    ]


def test_the_file_is_plain_safetensors(tmp_path):
    save(tmp_path, 100, state(3))
    loaded = load_file(step_folder(tmp_path, 100) / "rank-0000.safetensors")
    assert loaded.keys() == state(3).keys()
    assert all(same_bits(loaded[name], tensor) for name, tensor in state(3).items())


def test_ranks_are_merged_and_files_are_opened_only_where_needed(tmp_path):
    tied = {"weights/embedding.weight": torch.randn(5, 3)}
    first, last = tied | {"weights/a.weight": torch.randn(4)}, tied | {"weights/b.weight": torch.randn(6)}
    save(tmp_path, 7, first, last)
    folder = step_folder(tmp_path, 7)
    checkpoint = newest_valid(tmp_path, pytest.fail)
    assert all(same_bits(checkpoint.read(name), tensor) for name, tensor in (first | last).items())

    checkpoint = Checkpoint.open(folder)
    (folder / "rank-0000.safetensors").unlink()
    assert same_bits(checkpoint.read("weights/b.weight"), last["weights/b.weight"])


def test_copies_of_a_tied_tensor_that_differ_are_refused_when_written_and_when_read(tmp_path):
    parts = [{"weights/embedding.weight": torch.tensor([value])} for value in (1.0, 2.0)]
    with pytest.raises(CheckpointFailed, match=r"two different copies of weights/embedding\.weight, in rank-0000"):
        save(tmp_path, 7, *parts)
    assert not list(tmp_path.iterdir())

    save(tmp_path, 7, parts[0], parts[0])
    folder = step_folder(tmp_path, 7)
    manifest = Manifest.read(folder)
    (name, record), *_ = manifest.files[1].tensors.items()
    other = replace(manifest.files[1], tensors={name: replace(record, xxh3_128="0" * 32)})
    replace(manifest, files=(manifest.files[0], other)).write(folder)
    with pytest.raises(CheckpointDamaged, match="two different copies"):
        Checkpoint.open(folder)


def test_a_hundred_flipped_bits_and_cut_files_are_each_noticed(tmp_path):
    save(tmp_path, 50, state(1))
    save(tmp_path, 100, state(2), {"weights/b.weight": torch.randn(40)})
    draw = random.Random(0)
    damaged = sorted(path for path in step_folder(tmp_path, 100).iterdir())
    assert [path.name for path in damaged] == ["manifest.json", "rank-0000.safetensors", "rank-0001.safetensors"]
    for round_ in range(100):
        path = damaged[round_ % len(damaged)]
        whole = path.read_bytes()
        content = bytearray(whole)
        if draw.random() < 0.8:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        else:
            del content[draw.randrange(len(content)) :]
        path.write_bytes(content)

        lines = []
        checkpoint = newest_valid(tmp_path, lines.append)
        assert checkpoint.info.step == 50
        assert all(same_bits(checkpoint.read(name), tensor) for name, tensor in state(1).items())
        assert len(lines) == 1
        assert str(path) in lines[0]
        path.write_bytes(whole)
    assert newest_valid(tmp_path, pytest.fail).info.step == 100


@pytest.mark.parametrize("file", ["manifest.json", "rank-0000.safetensors"])
def test_every_byte_of_a_checkpoint_counts(tmp_path, file):
    save(tmp_path, 1, {"weights/a.weight": torch.tensor([1.0, 2.0])})
    path = step_folder(tmp_path, 1) / file
    whole = path.read_bytes()
    for place in range(len(whole)):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        with pytest.raises(CheckpointDamaged):
            Checkpoint.open(path.parent).verify()


def test_a_tensor_is_checked_as_it_is_read(tmp_path):
    save(tmp_path, 1, {"weights/a.weight": torch.zeros(100), "weights/b.weight": torch.ones(100)})
    path = step_folder(tmp_path, 1) / "rank-0000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    checkpoint = Checkpoint.open(path.parent)
    assert torch.equal(checkpoint.read("weights/a.weight"), torch.zeros(100))
    with pytest.raises(CheckpointDamaged, match=r"rank-0000\.safetensors differs from its checksum in weights/b"):
        checkpoint.read("weights/b.weight")


@pytest.mark.parametrize("name", ["manifest.json", "rank-0000.safetensors"])
@pytest.mark.parametrize("kind", ["missing", "link", "folder"])
def test_what_is_no_plain_file_is_passed_over(tmp_path, name, kind):
    save(tmp_path / "runs", 1, state(1))
    path = step_folder(tmp_path / "runs", 1) / name
    path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(tmp_path / "somewhere" if name == MANIFEST_FILE else tmp_path / "elsewhere")
    elif kind == "folder":
        path.mkdir()
    lines = []
    assert newest_valid(tmp_path / "runs", lines.append) is None
    assert str(path) in lines[0]


def test_no_folder_is_no_checkpoint(tmp_path):
    assert newest_valid(tmp_path / "none", pytest.fail) is None
    assert newest_valid(tmp_path, pytest.fail) is None


def test_a_renamed_checkpoint_is_passed_over(tmp_path):
    save(tmp_path, 1, state(1))
    step_folder(tmp_path, 1).rename(step_folder(tmp_path, 2))
    lines = []
    assert newest_valid(tmp_path, lines.append) is None
    assert lines[0].endswith("is of step 1")


@pytest.mark.parametrize(
    "name",
    [
        "../rank-0000.safetensors",
        "/etc/passwd",
        "rank-0000.safetensors\n",
        "rank-0000.pt",
        "a/rank-0000.safetensors",
        "",
    ],
)
def test_a_manifest_names_files_of_its_own_folder_only(tmp_path, name):
    save(tmp_path, 1, state(1))
    forge(tmp_path, lambda content: content["files"][0].update(name=name))
    with pytest.raises(CheckpointDamaged, match="does not describe a checkpoint"):
        Manifest.read(step_folder(tmp_path, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["files"][0]["tensors"].update(
            {"weights/../x": content["files"][0]["tensors"]["weights/embedding.weight"]}
        ),
        lambda content: content["files"][0]["tensors"]["weights/embedding.weight"].update(dtype="object"),
        lambda content: content["files"].append(None),
        lambda content: content["info"].update(unknown=1),
        lambda content: content.update(files={}),
        lambda content: content.update(info=[]),
        lambda content: content.update(format=2),
    ],
)
def test_a_forged_manifest_is_refused_whatever_it_says(tmp_path, change):
    save(tmp_path, 1, state(1))
    forge(tmp_path, change)
    with pytest.raises(CheckpointDamaged):
        Checkpoint.open(step_folder(tmp_path, 1))


def forge(root, change) -> None:
    path = step_folder(root, 1) / MANIFEST_FILE
    content = unseal(path.read_bytes())
    change(content)
    path.write_text(seal(content))


@pytest.mark.parametrize("text", ["", "null", "[]", "3", '{"sha256": 1}', "[" * 100_000, "\xff\x00", "{}"])
def test_no_text_as_a_manifest_breaks_the_reader(tmp_path, text):
    save(tmp_path, 1, state(1))
    (step_folder(tmp_path, 1) / MANIFEST_FILE).write_text(text)
    with pytest.raises(CheckpointDamaged, match=MANIFEST_FILE):
        Manifest.read(step_folder(tmp_path, 1))


def test_a_missing_tensor_is_named(tmp_path):
    save(tmp_path, 1, state(1))
    with pytest.raises(ConfigError, match=r"has no tensor weights/nowhere"):
        Checkpoint.open(step_folder(tmp_path, 1)).read("weights/nowhere")


def test_another_configuration_is_refused_by_its_keys(tmp_path):
    config = {"optimizer": {"lr": 0.1, "betas": (0.9, 0.99)}, "trainer": {"num_steps": 10, "batch_size": 4}}
    checkpoint = Checkpoint(
        tmp_path, Manifest(CheckpointInfo(3, config={**config, "optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}}), ())
    )
    checkpoint.require_same_config(config, may_differ=())
    longer = config | {"trainer": {"num_steps": 20, "batch_size": 4}}
    checkpoint.require_same_config(longer, may_differ=("trainer.num_steps",))
    with pytest.raises(ConfigError, match=r"trainer\.num_steps=20: .* was made with trainer\.num_steps=10"):
        checkpoint.require_same_config(longer, may_differ=())
    other = {"optimizer": {"lr": 0.2, "betas": (0.9, 0.99)}, "trainer": {"num_steps": 10}}
    with pytest.raises(
        ConfigError, match=r"optimizer\.lr=0\.2: .*optimizer\.lr=0\.1; trainer\.batch_size=4 there, None"
    ):
        checkpoint.require_same_config(other, may_differ=("trainer.num_steps",))


@pytest.mark.parametrize("counters", [{"loss": float("nan")}, {"tensor": torch.ones(1)}])
def test_what_json_cannot_hold_is_refused_at_once(counters):
    with pytest.raises((TypeError, ValueError)):
        CheckpointInfo(1, config={}, counters=counters)


def test_names_by_parameter():
    names = [weight_name("a.weight"), weight_name("a.weight", 3), optimizer_name("a.weight.momentum")]
    names.append(correction_name("a.weight", "z"))
    assert names == ["weights/a.weight", "weights@3/a.weight", "optimizer/a.weight.momentum", "correction/a.weight.z"]
    assert all(map(is_tensor_name, names))
    assert not any(
        map(is_tensor_name, ["weights/", "weights/a/b", "other/a", "weights@/a", "weights/a\n", "weights/ä"])
    )


def test_a_name_of_another_kind_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="gradients/a"):
        save(tmp_path, 1, {"gradients/a": torch.ones(1)})


@pytest.mark.parametrize("num_files", [1, 2, 5])
def test_convert_keeps_every_tensor_and_the_rest(tmp_path, num_files):
    tied = {"weights/embedding.weight": state(1)["weights/embedding.weight"]}
    save(tmp_path / "from", 9, state(1), tied | {"weights/b.weight": torch.randn(40)}, val_loss=2.5)
    before, original = newest_valid(tmp_path / "from", pytest.fail), file_bytes(tmp_path / "from")
    convert(before, tmp_path / "to", num_files)
    after = newest_valid(tmp_path / "to", pytest.fail)
    assert after.info == before.info
    assert len(after.manifest.files) == num_files
    assert sorted(after.names) == sorted(before.names)
    assert sum(len(file.tensors) for file in after.manifest.files) == len(before.names)
    assert all(same_bits(after.read(name), before.read(name)) for name in before.names)
    assert file_bytes(tmp_path / "from") == original
    assert len(list((tmp_path / "to").iterdir())) == 1


def test_convert_does_not_overwrite(tmp_path):
    save(tmp_path, 9, state(1))
    before = file_bytes(tmp_path)
    with pytest.raises(ConfigError, match="expected a folder without step-00000009"):
        convert(Checkpoint.open(step_folder(tmp_path, 9)), tmp_path, 2)
    assert file_bytes(tmp_path) == before


def test_convert_of_a_damaged_checkpoint_leaves_nothing(tmp_path):
    save(tmp_path / "from", 9, state(1))
    path = step_folder(tmp_path / "from", 9) / "rank-0000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointDamaged):
        convert(Checkpoint.open(path.parent), tmp_path / "to", 2)
    assert list((tmp_path / "to").iterdir()) == []


def test_checkpoints_are_listed_newest_first_and_nothing_else_is(tmp_path):
    for name in (
        "step-00000009",
        "step-00000010",
        "step-123456789",
        "step-9",
        "step-000000011",
        ".step-00000012.a.partial",
    ):
        (tmp_path / name).mkdir()
    assert [path.name for path in step_folders(tmp_path)] == ["step-123456789", "step-00000010", "step-00000009"]
    shutil.rmtree(tmp_path)
    assert step_folders(tmp_path) == []
