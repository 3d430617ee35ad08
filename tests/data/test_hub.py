"""The hub, and its absence, found at once. A server on this machine plays the part of one that answers, or does not."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from data_cases import contents, make_documents, stored, write_hub_layout, write_parquet
from hub_server import Hub, serving

from asyncpp.data import hub
from asyncpp.data.manifest import Manifest
from asyncpp.errors import ConfigError

PREPARE = [sys.executable, "-m", "asyncpp.data.prepare"]


def attempt(root, *overrides, **environment):
    """Run a preparation. Returns its exit code, its standard error and how long it took."""
    env = {**os.environ, **environment}
    started_s = time.monotonic()
    command = [*PREPARE, f"data.root={root}", *overrides]
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100)
    return result.returncode, result.stderr, time.monotonic() - started_s


@pytest.fixture
def silent_port():
    """A port that accepts a connection and never says a word: what a fire wall can look like."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("data", ["fineweb", "fineweb_edu"])
def test_no_network_is_one_line_at_once(tmp_path, data):
    code, errors, duration_s = attempt(tmp_path / "data", f"data={data}", HF_ENDPOINT="http://hub.invalid")
    assert code == 2
    assert errors.count("\n") == 1 and "the hub cannot be reached; copy sample/10BT/*.parquet" in errors
    assert not (tmp_path / "data").exists()
    assert duration_s < 20  # the client's own retries take minutes


def test_a_silent_network_is_given_up_soon(tmp_path, silent_port):
    code, errors, duration_s = attempt(tmp_path, "data=fineweb", HF_ENDPOINT=f"http://127.0.0.1:{silent_port}")
    assert code == 2 and errors.count("\n") == 1 and "the hub cannot be reached" in errors
    assert duration_s < 20


def test_the_offline_switch_is_respected(tmp_path):
    code, errors, _ = attempt(tmp_path, "data=fineweb", HF_HUB_OFFLINE="1")
    assert code == 2 and errors.count("\n") == 1 and "switched off by HF_HUB_OFFLINE" in errors


def test_a_tokenizer_of_the_hub_is_one_line_too(tmp_path):
    (tmp_path / "raw.txt").write_text("text")
    overrides = [
        "data=local",
        f"data.path={tmp_path / 'raw.txt'}",
        "data.tokenizer.kind=hub",
        "data.tokenizer.name=o/t",
    ]
    code, errors, duration_s = attempt(tmp_path / "data", *overrides, HF_ENDPOINT="http://hub.invalid")
    assert code == 2 and errors.count("\n") == 1
    assert "data.tokenizer.name=o/t: the hub cannot be reached; set data.tokenizer.kind=file" in errors
    assert not (tmp_path / "data").exists()
    assert duration_s < 20


def test_any_reply_counts_as_reachable(monkeypatch):
    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_error(403)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    try:
        hub.require_hub("data.repository", "o/d", "go home")
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(ConfigError, match="cannot be reached; go home"):
        hub.require_hub("data.repository", "o/d", "go home")


DOCUMENTS = make_documents(120)


@pytest.fixture(scope="module")
def served(tmp_path_factory, tokenizer_file):
    """A hub with a dataset of which one sample is wanted, a tokenizer, and a model that has none."""
    root = tmp_path_factory.mktemp("hub")
    dataset = root / "datasets" / "HuggingFaceFW" / "fineweb-edu"
    write_hub_layout(dataset, DOCUMENTS)
    write_parquet(dataset / "data" / "CC-MAIN-2024-10" / "000_00000.parquet", ["not of the sample"])
    tokenizer = root / "models" / "o" / "tokenizer"
    tokenizer.mkdir(parents=True)
    shutil.copy(tokenizer_file, tokenizer / "tokenizer.json")
    (root / "models" / "o" / "empty").mkdir()
    with serving(root) as server:
        yield server


# All in one process, since it takes seconds to import what reads the hub.
PREPARE_EACH = """
import io, json, sys
from contextlib import redirect_stderr
from asyncpp.data import prepare, tokenize, writer
from asyncpp.data.sources import base, hub

tokenize.SAVE_EVERY_S, base.BLOCK_CHARACTERS, hub.ROWS_PER_BATCH = 0.0, 300, 8
write, written = writer.SplitWriter.write, []

def write_or_die(self, document):
    write(self, document)
    written.append(document)
    if len(written) == 70 and "data.name=dies" in sys.argv and "num_workers=1" not in sys.argv:
        raise KeyboardInterrupt

writer.SplitWriter.write = write_or_die
results = []
for overrides in json.load(sys.stdin):
    sys.argv = ["prepare", *overrides]
    written.clear()
    with redirect_stderr(io.StringIO()) as errors:
        code = prepare.main()
    results.append((code, errors.getvalue()))
print(json.dumps(results))
"""


LACKING = {
    "data.repository=o/nowhere": "data.repository=o/nowhere: no such repository on the hub",
    "data.revision=v9": "data.revision=v9: no such revision of HuggingFaceFW/fineweb-edu",
    "data.sample=1BT": "data.files=sample/1BT/*.parquet: HuggingFaceFW/fineweb-edu has no such files",
    "data.tokenizer.name=o/empty": "data.tokenizer.name=o/empty: the repository has no tokenizer.json",
    "data.tokenizer.name=o/nowhere": "data.tokenizer.name=o/nowhere: no such repository on the hub",
    "data.text_column=body": "data.text_column=body: HuggingFaceFW/fineweb-edu has the columns text, id, dump",
}


@pytest.fixture(scope="module")
def attempts(tmp_path_factory, served):
    """The exit code and standard error of preparations with this hub and an empty cache, and where they went."""
    folder = tmp_path_factory.mktemp("attempts")
    settings = [
        f"data.root={folder / 'data'}",
        "data=fineweb_edu",
        "data.tokenizer.name=o/tokenizer",
        "data.vocab_size=300",
        "data.validation_fraction=0.2",
        "data.shard_tokens=500",
    ]
    each = {override: [override, "data.name=lacking"] for override in LACKING}
    each |= {"whole": [], "dies": ["data.name=dies"], "goes on": ["data.name=dies", "num_workers=1"]}
    result = subprocess.run(
        [sys.executable, "-c", PREPARE_EACH],
        input=json.dumps([settings + overrides for overrides in each.values()]),
        env={**os.environ, "HF_ENDPOINT": served.url, "HF_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    return dict(zip(each, json.loads(result.stdout.splitlines()[-1]), strict=True)), folder / "data"


def test_a_dataset_and_its_tokenizer_are_streamed_from_the_hub(workshop, served, attempts):
    results, root = attempts
    assert results["whole"][0] == 0, results["whole"]
    assert stored(root / "fineweb_edu") == workshop.expected(DOCUMENTS)
    assert Manifest.read(root / "fineweb_edu").revision == Hub.commit("HuggingFaceFW/fineweb-edu")
    read = {request.rpartition("/")[2] for request in served.requests if request.endswith(".parquet")}
    assert read == {"000_00000.parquet", "001_00000.parquet", "002_00000.parquet"}
    assert not any("CC-MAIN" in request for request in served.requests)


def test_a_preparation_from_the_hub_is_broken_off_and_taken_up_again(attempts):
    results, root = attempts
    assert (results["dies"][0], results["goes on"][0]) == (75, 0), results
    assert contents(root / "dies") == contents(root / "fineweb_edu")


@pytest.mark.parametrize("override", LACKING)
def test_what_the_hub_lacks_is_one_line(attempts, override):
    results, root = attempts
    code, errors = results[override]
    assert code == 2
    assert errors.startswith(f"error: {LACKING[override]}") and errors.count("\n") == 1
    assert not (root / "lacking").exists()
