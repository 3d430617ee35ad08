"""One torch thread in every test: results are compared bit for bit, and tests run side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from asyncpp.command import compose_overrides
from asyncpp.config import Config, from_hydra

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
def make_config() -> Callable[..., Config]:
    """A checked configuration of a small model, from overrides. The data is not prepared."""

    def make(*overrides: str) -> Config:
        composed = compose_overrides([*SMALL_MODEL, *overrides])
        composed.data.vocab_size = composed.model.vocab_size
        composed.data.tokenizer.kind, composed.data.tokenizer.name = "file", "unused"
        return from_hydra(composed)

    return make
