"""What the larger sizes say before anything of their size exists: here, without a GPU, data or memory for them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from asyncpp.config import from_hydra
from asyncpp.dry_run import dry_run
from asyncpp.hydra_command import compose_overrides
from asyncpp.model.counts import parameter_counts
from asyncpp.plan import main as plan

LARGER = ("135m", "360m", "1b", "2b_moe", "3b", "10b")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("model", LARGER)
def test_every_size_is_described_part_by_part(model, optimizer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    overrides = (f"model={model}", f"optimizer={optimizer}", "correction=ef", "pipeline.num_stages=4")
    config = from_hydra(compose_overrides(overrides))
    assert dry_run(config) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    name = config.data.name
    assert first.startswith(
        f"data: data/{name} is not prepared; run first: python -m asyncpp.data.prepare data={name} "
    )
    total = parameter_counts(config.model).total
    assert f"{config.run_name()}: {total:,} parameters" in lines
    parts = [line for line in lines if " delay 1, " in line]
    assert len(parts) == 4
    assert sum(int(line.split(" layers, ")[1].split()[0].replace(",", "")) for line in parts) == total
    assert list(tmp_path.iterdir()) == []


def test_memory_is_what_the_plan_of_the_same_run_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    overrides = ("model=1b", "optimizer=soap", "pipeline.num_stages=2")
    assert dry_run(from_hydra(compose_overrides(overrides))) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("memory"))
    config = from_hydra(compose_overrides(overrides))
    batch = (
        f"trainer.batch_size={config.trainer.batch_size}",
        f"trainer.num_micro_batches={config.trainer.num_micro_batches}",
    )
    assert (
        plan(
            [
                *overrides,
                *batch,
                "data=fineweb_edu",
                "pipeline=simulated",
                "hardware=cpu",
                "precision=bf16_autocast",
                "json=true",
            ]
        )
        == 0
    )
    planned = json.loads(capsys.readouterr().out)["max_memory_bytes"]
    assert line.startswith(f"memory of rank 0: {planned / 1e9:.3g} GB at the peak (weights 4.11, ")


def test_ten_billion_parameters_take_no_memory(tmp_path):
    """By the process's own account: what rusage says of a child counts what its parent had when it was forked."""
    code = (
        "import atexit, runpy, sys; "
        "atexit.register(lambda: print(open('/proc/self/status').read(), file=sys.stderr)); "
        "runpy.run_module('asyncpp.train', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", code, "model=10b", "optimizer=soap", "trainer.dry_run=true"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "10,104,211,456 parameters" in result.stdout
    (peak_kib,) = [int(line.split()[1]) for line in result.stderr.splitlines() if line.startswith("VmHWM")]
    assert peak_kib < 2**20  # a gibibyte, of which torch is a quarter; the weights alone are 38
    assert list(tmp_path.iterdir()) == []
