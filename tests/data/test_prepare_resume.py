"""Preparation that is broken off, doubled, or runs out of space."""

import fcntl
import itertools
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
from data_cases import DOCUMENTS, contents, make_documents, refusal, stored
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpp.data import tokenize, writer
from asyncpp.data.manifest import Manifest
from asyncpp.data.prepare import BYTES_PER_TOKEN, prepare
from asyncpp.data.sources import base


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
    assert refusal(prepare, raw.config(text_column="body")).startswith("data.text_column=body:")
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


def test_other_settings_are_refused_by_an_unfinished_preparation_too(raw, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tokenize, "SAVE_EVERY_S", 0.0)
        die_at_document(patch, 119)
        patch.setattr(base, "BLOCK_CHARACTERS", 300)
        with pytest.raises(Killed):
            prepare(raw.config())
    assert refusal(prepare, raw.config(validation_fraction=0.3)).startswith("data.validation_fraction=0.3:")
    assert refusal(prepare, raw.config(budget_tokens=100.0)).startswith("data.budget_tokens=100.0:")


def test_an_attempt_that_goes_on_asks_for_space_too(raw, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tokenize, "SAVE_EVERY_S", 0.0)
        patch.setattr(base, "BLOCK_CHARACTERS", 300)
        die_at_document(patch, 60)
        with pytest.raises(Killed):
            prepare(raw.config())
    written = sum(path.stat().st_size for path in (Path(raw.config().root) / ".local.partial").glob("*.npy"))
    expected = 2 * sum(path.stat().st_size for path in (raw.folder / "raw").iterdir()) / BYTES_PER_TOKEN
    assert 0 < written < expected
    usage = shutil.disk_usage(raw.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=int(expected - written) - 1))
    assert refusal(prepare, raw.config()).startswith(f"data.root={raw.config().root}: about")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=int(expected - written) + 1))
    prepare(raw.config())
    assert stored(raw.config().folder) == raw.expected(DOCUMENTS)


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
