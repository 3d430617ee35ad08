"""What the larger sizes say before anything of their size exists: here, without a GPU, data or memory for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from asyncpp.command import compose_overrides
from asyncpp.config import from_hydra
from asyncpp.dry_run import dry_run
from asyncpp.model.counts import parameter_counts
from asyncpp.plan import main as plan

LARGER = ("135m", "360m", "1b", "2b_moe", "3b", "10b")


def train(*overrides: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncpp.train", *overrides]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


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
    command = [sys.executable, "-m", "asyncpp.train", "model=10b", "optimizer=soap", "trainer.dry_run=true"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)  # of this child alone
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert "10,104,211,456 parameters" in output
    assert usage.ru_maxrss < 2**20  # a gibibyte, of which torch is a quarter; the weights alone are 38
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_its_data_is_refused_before_anything_is_built(tmp_path):
    for arguments in (["model=3b"], ["-m", "model=3b", "optimizer=adamw,muon"], ["-m", "model=tiny,3b"]):
        result = train(*arguments, cwd=tmp_path)
        assert result.returncode == 2 and result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line == (
            "error: data.root=data: data/fineweb_edu_100bt is not prepared; run first: "
            "python -m asyncpp.data.prepare data=fineweb_edu_100bt data.budget_tokens=6.0e10"
        )
        assert list(tmp_path.iterdir()) == []


def test_every_cells_configuration_is_printed(tmp_path):
    result = train("-m", "model=1b,3b,10b", "optimizer=muon", "--cfg", "job", "--resolve", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    cells = [line for line in result.stdout.splitlines() if line.startswith("---")]
    assert cells == [f"--- # model={model} optimizer=muon" for model in ("1b", "3b", "10b")]
    documents = list(yaml.safe_load_all(result.stdout))
    assert [document["model"]["name"] for document in documents] == ["1b", "3b", "10b"]
    assert [document["optimizer"]["lr"] for document in documents] == [1e-3, 7e-4, 7e-4]
    assert list(tmp_path.iterdir()) == []
    refused = train("-m", "model=1b,4b", "--cfg", "job", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.splitlines()[-1].startswith("error: model=4b: expected one of ")
