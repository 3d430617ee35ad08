"""Every token of every document, and nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_cases import DOCUMENTS, END, WORDS, Workshop, contents, stored

from asyncpp.data import encode, tokenizer
from asyncpp.data.batches import Batches
from asyncpp.data.config import TokenizerConfig
from asyncpp.data.manifest import Manifest
from asyncpp.data.prepare import prepare
from asyncpp.data.sources import base
from asyncpp.data.tokenizer import train_tokenizer
from asyncpp.data.tokens import open_tokens
from asyncpp.errors import ConfigError


def test_every_token_of_every_document_is_stored_in_order(raw):
    config = raw.config()
    prepare(config)
    expected = raw.expected(DOCUMENTS)
    assert stored(config.folder) == expected
    assert len(expected["validation"]) > 100
    splits = Manifest.read(config.folder).splits
    assert {name: split.num_tokens for name, split in splits.items()} == {k: len(v) for k, v in expected.items()}
    assert sum(split.num_documents for split in splits.values()) == len(DOCUMENTS)
    assert [shard.num_tokens for shard in splits["train"].shards[:-1]] == [500] * (len(expected["train"]) // 500)


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("block_characters", [1, 10**9])
def test_threads_and_blocks_change_no_byte(raw, monkeypatch, num_workers, block_characters):
    prepare(raw.config())
    monkeypatch.setattr(base, "BLOCK_CHARACTERS", block_characters)
    other = raw.config(root=str(raw.folder / "other"))
    prepare(other, num_workers=num_workers)
    assert contents(other.folder) == contents(raw.config().folder)


def test_prepared_tokens_are_left_alone(raw):
    config = raw.config()
    prepare(config)
    before = {path: path.stat().st_mtime_ns for path in config.folder.iterdir()}
    prepare(config)
    assert {path: path.stat().st_mtime_ns for path in config.folder.iterdir()} == before


def test_nothing_but_the_prepared_folder_and_the_lock_remains(raw):
    prepare(raw.config())
    assert sorted(path.name for path in Path(raw.config().root).iterdir()) == [".local.lock", "local"]


@pytest.mark.parametrize("document", [0, 7, 30])
@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_a_budget_is_reached_at_the_end_of_a_document(raw, document, excess):
    """A budget that some training document just fails to fill, fills, or overfills."""
    expected = np.array(raw.expected(DOCUMENTS)["train"])
    ends = np.flatnonzero(expected == expected[-1]) + 1
    budget = int(ends[document]) + excess
    config = raw.config(budget_tokens=float(budget))
    prepare(config)
    assert stored(config.folder)["train"] == expected[: ends[ends >= budget][0]].tolist()
    assert not Manifest.read(config.folder).source_exhausted


def test_a_budget_beyond_the_source_takes_all_and_says_so(raw):
    config = raw.config(budget_tokens=1e6)
    prepare(config)
    assert stored(config.folder) == raw.expected(DOCUMENTS)
    assert "ended before the budget of 1,000,000 tokens" in Manifest.read(config.folder).summary()


def test_empty_documents_are_counted_and_left_out(workshop):
    workshop.write(["one", "", "two", ""])
    prepare(workshop.config())
    assert stored(workshop.config().folder) == workshop.expected(["one", "two"])
    assert Manifest.read(workshop.config().folder).num_empty_documents == 2


def test_invalid_utf8_becomes_the_replacement_character_and_is_counted(workshop):
    folder = workshop.folder / "raw"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"good")
    (folder / "b.txt").write_bytes(b"bad \xff\xfe byte")
    (folder / "c.jsonl").write_bytes(b'{"text": "lone \\ud800 surrogate"}\n{"text": "raw \xff byte"}\n')
    prepare(workshop.config())
    repaired = ["good", "bad �� byte", "lone � surrogate", "raw � byte"]
    assert stored(workshop.config().folder) == workshop.expected(repaired)
    manifest = Manifest.read(workshop.config().folder)
    assert manifest.num_repaired_documents == 3
    assert "3 documents with invalid characters" in manifest.summary()


def test_text_that_spells_the_end_token_does_not_end_a_document(workshop):
    documents = [f"one {END} two", END]
    workshop.write(documents)
    prepare(workshop.config())
    tokens = stored(workshop.config().folder)
    assert tokens == workshop.expected(documents)
    assert (tokens["train"] + tokens["validation"]).count(0) == 2


def test_a_huge_document_is_cut_without_changing_a_token(tmp_path, monkeypatch):
    """The tokenizer knows runs of spaces, so a cut within one would show."""
    monkeypatch.setattr(encode, "PIECE_CHARACTERS", 100)
    random = np.random.default_rng(0)
    gaps = random.choice([" ", "    ", "\n\n ", " \n"], 5000)
    huge = "".join(word + gap for word, gap in zip(random.choice(WORDS, 5000), gaps, strict=True))
    workshop = Workshop(tmp_path, tmp_path / "tokenizer.json")
    train_tokenizer([huge], 300, END).save(str(workshop.tokenizer_file))
    workshop.write(["small", huge])
    prepare(workshop.config())
    assert stored(workshop.config().folder) == workshop.expected(["small", huge])


def test_a_tokenizer_is_trained_on_a_huge_document_in_pieces(workshop, monkeypatch):
    workshop.write([" ".join(DOCUMENTS)])
    whole = workshop.config(name="whole", tokenizer=TokenizerConfig("trained", None, END), vocab_size=400)
    prepare(whole)
    monkeypatch.setattr(tokenizer, "PIECE_CHARACTERS", 100)
    prepare(replace(whole, name="pieces"))
    assert contents(replace(whole, name="pieces").folder) == contents(whole.folder)


def test_a_source_of_empty_documents_says_so(workshop):
    workshop.write(["", ""])
    prepare(workshop.config())
    summary = Manifest.read(workshop.config().folder).summary()
    assert "no document has a token; 2 empty documents left out" in summary and "held out" not in summary
    with pytest.raises(ConfigError, match=r"data\.sequence_length=16: expected less than 0, the training tokens of lo"):
        Batches(open_tokens(workshop.config()), 16, 4, seed=0)


@pytest.mark.parametrize("text", ["x" * 5000, " " * 5000, "word " * 1000])
def test_pieces_are_the_whole_text(text):
    cut = list(encode.pieces(text, 999))
    assert "".join(cut) == text and max(map(len, cut)) <= 999


def test_a_source_without_a_held_out_document_is_prepared(workshop):
    workshop.write(["one"] * 3)  # copies: all on one side
    prepare(workshop.config())
    tokens = stored(workshop.config().folder)
    assert tokens["train"] and not tokens["validation"]
    assert "no document was held out" in Manifest.read(workshop.config().folder).summary()


def test_a_tokenizer_is_trained_once_on_what_is_not_held_out(raw):
    config = raw.config(tokenizer=TokenizerConfig("trained", None, END), vocab_size=320)
    again = replace(config, root=str(raw.folder / "again"))
    prepare(config)
    prepare(again)
    assert contents(config.folder) == contents(again.folder)
    assert Manifest.read(config.folder).vocab_size == 320


def test_a_large_vocabulary_takes_four_bytes(raw, tmp_path):
    content = json.loads(raw.tokenizer_file.read_text())
    content["model"]["vocab"] |= {f"unused {number}": 300 + number for number in range(2**16)}
    large = tmp_path / "large.json"
    large.write_text(json.dumps(content))
    config = raw.config(tokenizer=TokenizerConfig("file", str(large), END), vocab_size=70000)
    prepare(config)
    assert Manifest.read(config.folder).dtype == "uint32"
    assert stored(config.folder) == raw.expected(DOCUMENTS)
