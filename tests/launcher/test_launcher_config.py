"""hydra/launcher: what it is made of, and what is refused before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncpp.arguments import exit_code_of
from asyncpp.errors import ConfigError
from asyncpp.launcher.cell import compose_cell
from asyncpp.launcher.config import LocalConfig, SlurmConfig, launcher_from
from asyncpp.launcher.freeze import Code
from asyncpp.launcher.launch import launch
from asyncpp.launcher.slurm import _parameters

TWO_STAGES = ("hydra/launcher=slurm", "pipeline=2bw", "pipeline.num_stages=2", "trainer.num_micro_batches=4")


def slurm_of(*overrides: str) -> SlurmConfig:
    launcher = compose_cell(["hydra/launcher=slurm", *overrides]).launcher
    assert isinstance(launcher, SlurmConfig)
    return launcher


def test_a_rank_is_a_task_and_a_thread_is_a_core():
    cell = compose_cell([*TWO_STAGES, "trainer.num_threads=3", "hydra.launcher.nodes=2", "hydra.launcher.mem_gb=1.5"])
    wanted = _parameters(cell, Code(Path("/code"), "unknown"))
    assert (wanted["nodes"], wanted["ntasks_per_node"], wanted["cpus_per_task"], wanted["mem"]) == (2, 1, 3, "1536MB")
    assert "partition" not in wanted
    one_task = compose_cell([*TWO_STAGES, "trainer.num_threads=3", "hydra.launcher.tasks_per_node=1"])
    assert _parameters(one_task, Code(Path("/code"), "unknown"))["cpus_per_task"] == 6


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("nodes=4", "launcher.nodes=4: expected nodes x tasks_per_node = 2"),
        ("tasks_per_node=3", "launcher.tasks_per_node=3: expected nodes x tasks_per_node = 2"),
        ("nodes=0", "launcher.nodes=0: expected 1 or more"),
        ("timeout_min=two", "launcher.timeout_min=two: value 'two'"),
        ("timeout_min=1", "launcher.signal_delay_s=120: expected less than the 60 s"),
        ("max_num_requeues=-1", "launcher.max_num_requeues=-1: expected 0"),
        ("nodez=2", "hydra.launcher.nodez=2: no such key; did you mean nodes?"),
        ("num_parallel=0", "launcher.num_parallel=0: expected 1 or more"),
    ],
)
def test_what_slurm_cannot_be_asked_for_is_refused_when_it_is_composed(overrides, message):
    with pytest.raises(ConfigError) as refusal:
        compose_cell([*TWO_STAGES, f"hydra.launcher.{overrides}"])
    assert str(refusal.value).startswith(message)


def test_one_process_is_one_task_and_a_launcher_is_ours():
    with pytest.raises(ConfigError, match=r"launcher\.nodes=2: expected nodes x tasks_per_node = 1"):
        slurm_of("hydra.launcher.nodes=2")
    with pytest.raises(ConfigError, match="hydra/launcher=None: expected one of local, slurm"):
        compose_cell(["hydra/launcher=basic"])


def test_a_ledgers_launcher_comes_back_and_can_be_changed():
    slurm = slurm_of("hydra.launcher.partition=gpu", "hydra.launcher.setup=[module load cuda]")
    assert launcher_from(vars(slurm), []) == slurm
    assert launcher_from(vars(slurm), ["timeout_min=7", "partition=null"]).timeout_min == 7
    local = compose_cell(["hydra/launcher=local"]).launcher
    assert launcher_from(vars(local), ["num_parallel=5"]) == LocalConfig("local", 5)
    with pytest.raises(ConfigError, match=r"launcher\.nodes=2: no such key; accepted here: name, num_parallel"):
        launcher_from(vars(local), ["nodes=2"])
    with pytest.raises(ConfigError, match=r"launcher\.timeout_min=x: value 'x'"):
        launcher_from(vars(slurm), ["timeout_min=x"])


@pytest.mark.parametrize(
    ("sinfo", "partition", "message"),
    [
        (None, "null", "hydra/launcher=slurm: expected a machine from which Slurm answers: there is no sinfo here"),
        (
            "echo no >&2; exit 1",
            "null",
            "hydra/launcher=slurm: expected a machine from which Slurm answers: sinfo says: no",
        ),
        ("echo main high main", "gpu", "launcher.partition=gpu: expected one of this cluster's, which are main, high"),
    ],
)
def test_without_slurm_or_the_partition_nothing_is_made(tmp_path, monkeypatch, capsys, sinfo, partition, message):
    if sinfo is not None:
        (tmp_path / "sinfo").write_text(f"#!/bin/sh\n{sinfo}\n")
        (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cell = compose_cell(["hydra/launcher=slurm", f"hydra.launcher.partition={partition}"])
    assert exit_code_of(lambda: launch([cell])) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"sinfo"}
