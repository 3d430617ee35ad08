"""Tokens prepared once for all runs of these tests."""

from __future__ import annotations

import pytest

from asyncpp.config import from_hydra
from asyncpp.data.prepare import prepare
from asyncpp.hydra_command import compose_overrides


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = f"data.root={tmp_path_factory.mktemp('data')}"
    prepare(from_hydra(compose_overrides([root])).data)
    return root
