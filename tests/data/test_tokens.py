import errno
import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_cases import END, make_documents, refusal, stored

from asyncpp.data import verify as verify_module
from asyncpp.data.batches import Batches, validation_windows
from asyncpp.data.config import MixtureConfig, TokenizerConfig
from asyncpp.data.manifest import Manifest
from asyncpp.data.prepare import prepare
from asyncpp.data.tokens import end_of_document, open_tokens
from asyncpp.data.verify import verify
from asyncpp.errors import ConfigError

DOCUMENTS = make_documents(60)


@pytest.fixture
def config(workshop):
    workshop.write(DOCUMENTS)
    prepare(workshop.config())
    return workshop.config()


def settle(folder: Path) -> None:
    """Date the files back, as if they had been written long ago, and let them be verified."""
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    verify(folder, Manifest.read(folder))


def test_opened_tokens_are_the_stored_ones(config):
    tokens = open_tokens(config)
    (source,) = tokens.sources
    assert source.train.slice(0, source.train.num_tokens).tolist() == stored(config.folder)["train"]
    assert source.validation.slice(0, source.validation.num_tokens).tolist() == stored(config.folder)["validation"]
    assert (tokens.vocab_size, tokens.end_of_document) == (300, 0)


def test_training_and_validation_share_no_document(config):
    splits = stored(config.folder)
    documents = {
        name: {tuple(part) for part in np.split(np.array(ids), np.flatnonzero(np.array(ids) == 0) + 1) if len(part)}
        for name, ids in splits.items()
    }
    assert len(documents["train"]) + len(documents["validation"]) == len(DOCUMENTS)
    assert not documents["train"] & documents["validation"]


def test_one_hundred_flipped_bits_are_all_found(config):
    """In every file that a run reads, each of them as often as the others."""
    random = np.random.default_rng(0)
    files = [path for path in sorted(config.folder.iterdir()) if path.name != "verified.json"]
    assert len([path for path in files if path.suffix == ".npy"]) > 5
    for number in range(max(100, 5 * len(files))):
        path = files[number % len(files)]
        intact = path.read_bytes()
        content = bytearray(intact)
        content[random.integers(len(content))] ^= 1 << random.integers(8)
        path.write_bytes(content)
        assert path.name in refusal(open_tokens, config)
        path.write_bytes(intact)
    open_tokens(config)


def test_every_bit_of_the_manifest_counts(config):
    path = config.folder / "manifest.json"
    intact = path.read_bytes()
    for place in range(0, len(intact), 23):
        content = bytearray(intact)
        content[place] ^= 1 << (place % 8)
        path.write_bytes(content)
        assert "manifest.json" in refusal(open_tokens, config)


@pytest.mark.parametrize("name", ["train-00001.npy", "validation-00000.npy", "tokenizer.json"])
def test_a_missing_file_is_named(config, name):
    (config.folder / name).unlink()
    assert f"{config.folder / name} is missing" in refusal(open_tokens, config)


def test_a_truncated_shard_is_named(config):
    path = config.folder / "train-00001.npy"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path} has 1127 bytes instead of 1128" in refusal(open_tokens, config)


@pytest.mark.parametrize("settled", [False, True])
def test_swapped_shards_are_named(config, settled):
    if settled:
        settle(config.folder)
    one, two, aside = (config.folder / name for name in ("train-00000.npy", "train-00001.npy", "aside"))
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    assert f"{one} differs from its checksum" in refusal(open_tokens, config)


def test_a_shard_is_read_again_only_when_it_was_touched(config, monkeypatch):
    monkeypatch.setattr(verify_module, "SETTLED_AFTER_S", -1.0)  # trust what was written just now
    hashed = []
    file_sha256 = verify_module.file_sha256
    monkeypatch.setattr(verify_module, "file_sha256", lambda path: hashed.append(path.name) or file_sha256(path))
    num_files = len(list(config.folder.glob("*.npy"))) + 1  # and the tokenizer
    open_tokens(config)
    assert len(hashed) == num_files + 1
    hashed.clear()
    open_tokens(config)
    assert hashed == ["manifest.json"]
    hashed.clear()
    os.utime(config.folder / "train-00001.npy")
    open_tokens(config)
    assert hashed == ["manifest.json", "train-00001.npy"]


def test_a_change_with_the_old_time_set_back_is_found(config, monkeypatch):
    monkeypatch.setattr(verify_module, "SETTLED_AFTER_S", -1.0)
    open_tokens(config)
    path = config.folder / "train-00000.npy"
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert f"{path} differs from its checksum" in refusal(open_tokens, config)


def test_what_was_written_just_now_is_read_again_next_time(config, monkeypatch):
    """File times tick slowly: a second write in the same tick would go unseen."""
    old, new = config.folder / "train-00000.npy", config.folder / "train-00001.npy"
    hashed = []
    file_sha256 = verify_module.file_sha256
    monkeypatch.setattr(verify_module, "file_sha256", lambda path: hashed.append(path) or file_sha256(path))
    changed_s = old.stat().st_ctime
    monkeypatch.setattr(verify_module, "SETTLED_AFTER_S", 5.0)
    monkeypatch.setattr(verify_module.time, "time", lambda: changed_s + 60.0)
    open_tokens(config)
    monkeypatch.setattr(verify_module.time, "time", lambda: new.stat().st_ctime + 4.9)
    new.touch()
    for _ in range(2):
        hashed.clear()
        open_tokens(config)
        assert new in hashed and old not in hashed
    monkeypatch.setattr(verify_module.time, "time", lambda: new.stat().st_ctime + 5.1)
    open_tokens(config)
    hashed.clear()
    open_tokens(config)
    assert new not in hashed


def test_a_damaged_memory_of_what_was_verified_is_not_believed(config, monkeypatch):
    monkeypatch.setattr(verify_module, "SETTLED_AFTER_S", -1.0)
    open_tokens(config)
    memory = config.folder / "verified.json"
    memory.write_text(memory.read_text().replace("1", "2"))
    open_tokens(config)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_can_be_read(config, monkeypatch, code):
    """Not remembering what was verified costs time and nothing else."""

    def refuse(path, text):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(verify_module, "SETTLED_AFTER_S", -1.0)
    monkeypatch.setattr(verify_module.records, "write_atomically", refuse)
    assert open_tokens(config).sources
    assert not (config.folder / "verified.json").exists()


def test_tokens_move_with_their_folder(config, workshop):
    shutil.move(config.root, workshop.folder / "elsewhere")
    open_tokens(workshop.config(root=str(workshop.folder / "elsewhere"), path=None))


def test_unprepared_tokens_are_asked_for(workshop):
    message = refusal(open_tokens, workshop.config())
    assert message.startswith(f"data.root={workshop.folder / 'data'}:") and "asyncpp.data.prepare" in message


def test_a_folder_without_a_manifest_is_refused(config):
    (config.folder / "manifest.json").unlink()
    assert "manifest.json is missing" in refusal(open_tokens, config)


def test_tokens_beyond_the_vocabulary_are_refused(config, workshop):
    largest = max(map(max, stored(config.folder).values()))
    open_tokens(workshop.config(vocab_size=largest + 1))
    message = refusal(open_tokens, workshop.config(vocab_size=largest))
    assert message.startswith(f"data.vocab_size={largest}: expected more than {largest}")


def test_other_settings_are_refused(config, workshop):
    assert refusal(open_tokens, workshop.config(validation_fraction=0.5)).startswith("data.validation_fraction=0.5:")


def test_five_shards_on_two_ranks_show_every_document(config, workshop):
    """More shards than ranks, of which neither divides the other: nothing is left out."""
    everything = stored(config.folder)["train"]
    five = workshop.config(name="five", shard_tokens=-(-len(everything) // 5))
    prepare(five)
    assert len(list(five.folder.glob("train-*.npy"))) == 5
    batches = Batches(open_tokens(five), sequence_length=1, batch_size=4, seed=0)
    num_steps = -(-batches.num_windows[0] // 4)
    rows = [row for step in range(num_steps) for rank in range(2) for row in batches.micro_batch(step, 0, 1, rank, 2)]
    assert {tuple(row) for row in rows} == set(itertools.pairwise(everything))
    once = [tuple(row) for row in rows[: batches.num_windows[0]]]
    assert sorted(once) == sorted(itertools.pairwise(everything))


def mixture(workshop, weights, **settings) -> MixtureConfig:
    values = {"name": "mixture", "root": str(workshop.folder / "data"), "sequence_length": 16, "vocab_size": 300}
    return MixtureConfig(**values, num_validation_sequences=10, document_mask=False, weights=weights, **settings)


def test_a_mixture_reads_prepared_sources(config, workshop):
    workshop.write(make_documents(60, seed=1), "other/b.jsonl")
    other = workshop.config(name="other", path=str(workshop.folder / "raw" / "other"))
    prepare(other)
    mixed = mixture(workshop, {"local": 1.0, "other": 3.0})
    prepare(mixed)
    tokens = open_tokens(mixed)
    mine = {bytes(row) for row in Batches(open_tokens(other), 16, 600, 0).batch(0)}
    rows = Batches(tokens, 16, 40, seed=0).batch(0)
    assert sum(bytes(row) in mine for row in rows) == 30
    assert validation_windows(tokens, 16, 10).shape == (10, 17)
    assert (
        end_of_document(mixed) == end_of_document(other) == tokens.end_of_document == stored(other.folder)["train"][-1]
    )


def test_a_mixture_of_two_tokenizers_is_refused(config, workshop):
    trained = TokenizerConfig("trained", None, END)
    prepare(workshop.config(name="other", tokenizer=trained))
    message = refusal(open_tokens, mixture(workshop, {"local": 1.0, "other": 3.0}))
    assert message == "data.weights.other=3.0: it was prepared with another tokenizer than local"


def test_a_mixture_with_an_unprepared_source_is_refused(config, workshop):
    with pytest.raises(ConfigError, match="other is not prepared"):
        prepare(mixture(workshop, {"local": 1.0, "other": 3.0}))


def test_the_manifest_is_plain_json(config):
    content = json.loads((config.folder / "manifest.json").read_text())
    assert content["splits"]["train"]["num_tokens"] == len(stored(config.folder)["train"])
