"""One torch thread in every test: results are compared bit for bit, and tests run side by side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from asyncpp.config import Config, from_hydra
from asyncpp.hydra_command import compose_overrides

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent))  # for tests/reference

# Narrow and shallow, but with every part of a model: grouped queries, several layers, an odd vocabulary.
SMALL_MODEL = (
    "model.vocab_size=61",
    "model.num_layers=3",
    "model.hidden_size=24",
    "model.ffn_size=40",
    "model.num_heads=6",
    "model.num_kv_heads=2",
)


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``python -m`` with the given arguments in the test's folder; none outlives a test that fails."""
    processes = []

    def start_one(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", *arguments]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True))
        return processes[-1]

    yield start_one
    for process in processes:
        if process.poll() is None:
            process.terminate()  # which it passes on to the processes that it started
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture
def make_config() -> Callable[..., Config]:
    """A checked configuration of a small model, from overrides. The data is not prepared."""

    def make(*overrides: str) -> Config:
        composed = compose_overrides([*SMALL_MODEL, *overrides])
        composed.data.vocab_size = composed.model.vocab_size
        composed.data.tokenizer.kind, composed.data.tokenizer.name = "file", "unused"
        return from_hydra(composed)

    return make
