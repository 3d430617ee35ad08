import fcntl
import itertools
import json
import os
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from data_cases import END, WORDS, Workshop, contents, make_documents, stored
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpp.data import encode, tokenize, writer
from asyncpp.data.config import TokenizerConfig
from asyncpp.data.manifest import Manifest
from asyncpp.data.prepare import prepare
from asyncpp.data.sources import base
from asyncpp.data.tokenizer import train_tokenizer
from asyncpp.errors import ConfigError

DOCUMENTS = make_documents(120)


@pytest.fixture
def raw(workshop) -> Workshop:
    workshop.write(DOCUMENTS[:70], "a.jsonl")
    workshop.write(DOCUMENTS[70:], "b.jsonl")
    return workshop


def refused(config) -> str:
    with pytest.raises(ConfigError) as refusal:
        prepare(config)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


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


class Killed(BaseException):
    pass


WRITE = writer.SplitWriter.write


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.integers(1, 30), min_size=1, max_size=4), save_every_s=st.sampled_from([0.0, 0.001, 99.0]))
def test_broken_off_anywhere_and_run_again_the_bytes_are_the_same(workshop, kills, save_every_s):
    """Each attempt dies at its n-th document, with what it wrote since it last saved; the last one lives."""
    documents = make_documents(40)
    workshop.write(documents)
    unbroken = workshop.config()
    prepare(unbroken)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenize, "SAVE_EVERY_S", save_every_s)
        patch.setattr(base, "BLOCK_CHARACTERS", 300)
        config = workshop.config(root=root)
        for kill in kills:
            die_at_document(patch, kill)
            with suppress(Killed):
                prepare(config, num_workers=1)
        die_at_document(patch, 10**9)
        prepare(config, num_workers=2)
        assert contents(config.folder) == contents(unbroken.folder)


def die_at_document(patch: pytest.MonkeyPatch, number: int) -> None:
    """Raise Killed after the ``number``-th document has been written."""
    documents = itertools.count(1)

    def write_or_die(self, document):
        WRITE(self, document)
        if next(documents) == number:
            raise Killed

    patch.setattr(writer.SplitWriter, "write", write_or_die)


def test_a_preparation_goes_on_instead_of_beginning_again(raw, monkeypatch):
    monkeypatch.setattr(tokenize, "SAVE_EVERY_S", 0.0)
    monkeypatch.setattr(base, "BLOCK_CHARACTERS", 300)
    written = []

    def counted(self, document):
        WRITE(self, document)
        written.append(len(document))
        if len(written) == 100:
            raise Killed

    monkeypatch.setattr(writer.SplitWriter, "write", counted)
    with pytest.raises(Killed):
        prepare(raw.config(), num_workers=1)
    prepare(raw.config(), num_workers=1)
    assert len(DOCUMENTS) <= len(written) < 1.1 * len(DOCUMENTS)


def test_a_kill_between_the_manifest_and_the_rename_is_mended(raw, monkeypatch):
    config = raw.config()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            prepare(config)
    prepare(config)
    assert stored(config.folder) == raw.expected(DOCUMENTS)


def test_an_attempt_that_wrote_nothing_binds_nobody(raw):
    assert refused(raw.config(text_column="body")).startswith("data.text_column=body:")
    prepare(raw.config())
    assert stored(raw.config().folder) == raw.expected(DOCUMENTS)


def test_a_damaged_journal_begins_anew(raw, monkeypatch):
    config = raw.config()
    with monkeypatch.context() as patch:
        patch.setattr(tokenize, "SAVE_EVERY_S", 0.0)
        patch.setattr(base, "BLOCK_CHARACTERS", 300)
        die_at_document(patch, 119)
        with pytest.raises(Killed):
            prepare(config)
    journal = Path(config.root) / ".local.partial" / "journal.json"
    sealed = journal.read_bytes()
    journal.write_bytes(sealed.replace(b'"num_empty_documents": 0', b'"num_empty_documents": 1'))
    assert journal.read_bytes() != sealed
    prepare(config)
    assert Manifest.read(config.folder).num_empty_documents == 0
    assert stored(config.folder) == raw.expected(DOCUMENTS)


def prepare_and_list(config) -> dict[str, bytes]:
    prepare(config)
    return contents(config.folder)


def test_two_processes_at_once_prepare_once(raw):
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        first, second = processes.map(prepare_and_list, [raw.config()] * 2)
    assert first == second
    assert stored(raw.config().folder) == raw.expected(DOCUMENTS)


def test_a_second_preparation_waits_for_the_first(raw):
    config = raw.config()
    Path(config.root).mkdir()
    statuses = []
    waits = threading.Event()

    def report(status):
        statuses.append(status.activity)
        waits.set()

    with (Path(config.root) / ".local.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = threading.Thread(target=prepare, args=(config, report))
        second.start()
        assert waits.wait(30)
        second.join(0.2)
        assert second.is_alive() and statuses == ["local: waiting for the process that prepares it"]
        assert not config.folder.exists()
    second.join(30)
    assert stored(config.folder) == raw.expected(DOCUMENTS)


@pytest.mark.parametrize("setting", ["validation_fraction", "shard_tokens", "text_column"])
def test_other_settings_are_refused(raw, setting):
    prepare(raw.config())
    other = {"validation_fraction": 0.3, "shard_tokens": 501, "text_column": "body"}[setting]
    message = refused(raw.config(**{setting: other}))
    assert message.startswith(f"data.{setting}={other}:") and "data.root" in message


def test_other_settings_are_refused_by_an_unfinished_preparation_too(raw, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tokenize, "SAVE_EVERY_S", 0.0)
        die_at_document(patch, 119)
        patch.setattr(base, "BLOCK_CHARACTERS", 300)
        with pytest.raises(Killed):
            prepare(raw.config())
    assert refused(raw.config(validation_fraction=0.3)).startswith("data.validation_fraction=0.3:")
    assert refused(raw.config(budget_tokens=100.0)).startswith("data.budget_tokens=100.0:")


def test_another_tokenizer_is_refused(raw, tmp_path):
    prepare(raw.config())
    trained = TokenizerConfig("trained", None, END)
    assert refused(raw.config(tokenizer=trained)).startswith("data.tokenizer.kind=trained:")
    other = tmp_path / "other.json"
    other.write_text(raw.tokenizer_file.read_text().replace('"version": "1.0"', '"version":  "1.0"'))
    message = refused(raw.config(tokenizer=TokenizerConfig("file", str(other), END)))
    assert message.startswith(f"data.tokenizer.name={other}:")


def test_a_moved_tokenizer_is_accepted(raw, tmp_path):
    prepare(raw.config())
    moved = tmp_path / "moved.json"
    moved.write_bytes(raw.tokenizer_file.read_bytes())
    prepare(raw.config(tokenizer=TokenizerConfig("file", str(moved), END)))


def test_another_source_is_refused_and_no_source_is_accepted(raw):
    prepare(raw.config())
    raw.write(DOCUMENTS[:5], "c.jsonl")
    assert refused(raw.config()).startswith(f"data.path={raw.folder / 'raw'}:")
    prepare(raw.config(path=None))


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


def test_another_budget_is_refused_and_none_is_accepted(raw):
    prepare(raw.config(budget_tokens=1500.0))
    assert refused(raw.config(budget_tokens=2000.0)).startswith("data.budget_tokens=2000.0:")
    prepare(raw.config())


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
    tokenizer = json.loads(raw.tokenizer_file.read_text())
    tokenizer["model"]["vocab"] |= {f"unused {number}": 300 + number for number in range(2**16)}
    large = tmp_path / "large.json"
    large.write_text(json.dumps(tokenizer))
    config = raw.config(tokenizer=TokenizerConfig("file", str(large), END), vocab_size=70000)
    prepare(config)
    assert Manifest.read(config.folder).dtype == "uint32"
    assert stored(config.folder) == raw.expected(DOCUMENTS)


BAD_INPUT = {
    "no path": ({"path": None}, r"data\.path=null: expected a file or folder with \.parquet"),
    "no such path": ({"path": "nowhere"}, r"data\.path=nowhere: no such file or folder"),
    "no end token": (
        {"tokenizer": ("file", "FILE", "</s>")},
        r"data\.tokenizer\.end_of_document=</s>: expected a token of the tokenizer \(<\|endoftext\|>\)",
    ),
    "no tokenizer": (
        {"tokenizer": ("file", "nowhere.json", END)},
        r"data\.tokenizer\.name=nowhere\.json: expected a re",
    ),
    "small vocabulary": ({"vocab_size": 299}, r"data\.vocab_size=299: expected 300 or more"),
    "no such column": ({"text_column": "body"}, r"data\.text_column=body: .*a\.jsonl has the columns text"),
    "too little space": (
        {"budget_tokens": 1e18, "path": "HUGE"},
        r"data\.root=.*: about .* tokens need .* GB are free",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_leaves_nothing(raw, case, monkeypatch):
    given, expected = BAD_INPUT[case]
    given = dict(given)
    if "tokenizer" in given:
        kind, name, end = given["tokenizer"]
        given["tokenizer"] = TokenizerConfig(kind, str(raw.tokenizer_file) if name == "FILE" else name, end)
    if given.get("path") == "HUGE":
        del given["path"]
        monkeypatch.setattr("asyncpp.data.sources.files.FileSource.expected_bytes", lambda self: 10**18)
    config = raw.config(**given)
    assert re.match(expected, refused(config))
    if case != "no such column":  # that shows only when a file is read
        assert not Path(config.root).exists()


@pytest.mark.parametrize("line", ["not json", "[1]", '{"text": 3}'])
def test_a_line_that_is_no_document_is_named_by_its_place(workshop, line):
    path = workshop.write(["good"])
    place = path.stat().st_size
    path.write_text(path.read_text() + line + "\n")
    message = refused(workshop.config())
    assert message.startswith(f"data.path={path}:") and f"byte {place}" in message


def test_a_folder_that_cannot_be_written_is_named(raw):
    config = raw.config(root=str(raw.folder / "raw" / "a.jsonl" / "data"))
    assert refused(config).startswith(f"data.root={config.root}: expected a writable folder")


def test_a_read_only_folder_is_named():
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), Path(folder) / "tokenizer.json")
        workshop.write(DOCUMENTS)
        config = workshop.config(tokenizer=TokenizerConfig("trained", None, END), root=f"{folder}/data")
        Path(config.root).mkdir()
        Path(folder).chmod(0o755)
        Path(config.root).chmod(0o555)
        root_user = os.geteuid() == 0
        try:
            if root_user:
                os.seteuid(65534)  # root may write anywhere
            assert refused(config) == f"data.root={config.root}: expected a writable folder (Permission denied)"
        finally:
            if root_user:
                os.seteuid(0)
            Path(config.root).chmod(0o755)


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))


def test_a_full_disk_is_one_line_and_preparation_goes_on_afterwards(raw):
    """The system refuses to let any file grow past 3,000 bytes, as it refuses on a full disk."""
    config = raw.config(shard_tokens=10**6)
    program = "import sys, pickle; from asyncpp.data.prepare import prepare; prepare(pickle.load(sys.stdin.buffer))"
    (Path(config.root) / ".local.partial").mkdir(parents=True)
    attempt = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(config), capture_output=True, preexec_fn=limit_file_size
    )
    assert attempt.returncode != 0
    last_line = attempt.stderr.decode().splitlines()[-1]
    assert "asyncpp.errors.ConfigError: data.root=" in last_line and "running it again goes on" in last_line
    prepare(config)
    assert stored(config.folder) == raw.expected(DOCUMENTS)
