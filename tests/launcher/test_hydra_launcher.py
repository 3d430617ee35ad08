"""``python -m asyncpp.train -m ... hydra/launcher=``: the cells of a multirun go the way of a sweep's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asyncpp import records
from asyncpp.launcher.ledger import Ledger


def train(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncpp.train", "-m", *arguments]
    environment = None if path is None else {"PATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_what_slurm_cannot_do_is_one_line_before_anything_is_written(tmp_path):
    without = train(tmp_path, "seed=0,1", "hydra/launcher=slurm", path=str(tmp_path))
    assert without.returncode == 2
    assert without.stderr == (
        "error: hydra/launcher=slurm: expected a machine from which Slurm answers: there is no sinfo here\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_local_cells_run_side_by_side_and_one_that_fails_is_named(tmp_path, tmp_path_factory):
    data_root = tmp_path_factory.getbasetemp().parent / "data"
    shared = [f"data.root={data_root}", "data.num_validation_sequences=8", "trainer.num_steps=4"]
    broken = ["optimizer.lr=1e-3,1e30", "trainer.max_skipped_steps=2"]
    result = train(tmp_path, *broken, *shared, "sweep_name=two", "hydra/launcher=local")
    assert result.returncode == 1, result.stderr
    assert result.stderr.count("failed: runs/two/") == 1
    entries = Ledger(tmp_path / "runs/two").entries()
    done = [records.is_finished(tmp_path / "runs/two" / run) for run in entries]
    assert done == [True, False] and [entry.launcher["name"] for entry in entries.values()] == ["local"] * 2
