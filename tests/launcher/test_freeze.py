"""A cell runs the code and the configuration of its launch, wherever it is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from asyncpp import records
from asyncpp.launcher.cell import compose_cell
from asyncpp.launcher.freeze import SOURCE, freeze_code, freeze_config
from asyncpp.saved_config import read_config

WHERE = "import asyncpp.records as r, asyncpp.hydra_command as c; print(r.__file__, r.commit(), c.CONF)"


def test_a_process_imports_the_copy_even_in_the_repository(tmp_path: Path):
    code = freeze_code(tmp_path / "code")
    environment = os.environ | code.environment()
    done = subprocess.run([sys.executable, "-c", WHERE], cwd=SOURCE, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(code.folder / "asyncpp/records.py"), records.commit(), str(code.folder / "conf")]


def test_the_same_code_is_copied_once_and_the_copy_is_whole(tmp_path: Path):
    first, second = freeze_code(tmp_path), freeze_code(tmp_path)
    assert first == second and [path.name for path in tmp_path.iterdir()] == [first.folder.name]
    for name in ("asyncpp", "conf", "hydra_plugins"):
        ours = {p.relative_to(SOURCE): p.read_bytes() for p in (SOURCE / name).rglob("*.[py]*") if p.suffix != ".pyc"}
        assert ours == {path: (first.folder / path).read_bytes() for path in ours}
    assert (first.folder / records.COMMIT_FILE).read_text().strip() == records.commit()


def test_the_frozen_configuration_is_the_cells(tmp_path: Path):
    """Names of folders that a shell or Hydra could misread included."""
    overrides = ["optimizer=muon", "correction=ef", "optimizer.lr=1e-5", "pipeline.num_stages=2"]
    place = [f"runs_dir='{tmp_path}/a,b=c é'", "sweep_name='x y'"]
    cell = compose_cell(["hydra/launcher=local", *overrides, *place])
    freeze_config(cell)
    assert cell.folder.parent == tmp_path / "a,b=c é" / "x y"
    assert read_config("folder", cell.folder) == cell.config
