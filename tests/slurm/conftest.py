"""Data once for all, a place for each test, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_place import Place, processes_in, queue, wait_until


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "asyncpp.data.prepare", "data=sotu", f"data.root={root}"]
    subprocess.run(command, check=True, capture_output=True)
    return str(root)


@pytest.fixture
def place(tmp_path: Path, data_root: str) -> Iterator[Place]:
    """Afterwards Slurm has no job, and this machine no process, of any sweep that was started from here."""
    yield Place(tmp_path, data_root)
    try:
        sweeps = [file.stem for file in tmp_path.glob("*.yaml")]
        wait_until(lambda: not queue(",".join(sweeps)), "an empty queue", 60.0)
        wait_until(lambda: not processes_in(tmp_path), "the end of every process", 30.0)
    finally:
        subprocess.run(["scancel", "--me"], check=True)
