"""The hub's absence, found at once. A server on this machine plays the part of one that answers, or does not."""

import os
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from asyncpp.data import hub
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
