"""Sweep files: what they expand to, what they refuse, and that a second run has nothing to do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncpp import records
from asyncpp.errors import ConfigError
from asyncpp.launcher.ledger import Ledger
from asyncpp.sweep.expand import SweepOptions, expand
from asyncpp.sweep.file import load_sweep
from asyncpp.sweep.state import State, states_of


def sweep(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncpp.sweep", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_the_demo_is_two_optimizers_by_three_conditions_by_the_seeds():
    cells = expand("demo", load_sweep("demo"), SweepOptions(seeds=[3, 4]))
    kinds = {(c.config.optimizer.name, c.config.delay.name, c.config.correction.name, c.config.seed) for c in cells}
    conditions = [("sync", "none"), ("one_step", "none"), ("one_step", "ef")]
    assert kinds == {(o, *condition, s) for o in ("adamw", "muon") for condition in conditions for s in (3, 4)}


def test_one_bad_cell_stops_all_before_they_start(tmp_path):
    result = sweep("run", "demo", "overrides=['optimizer.betas=[0.9,0.9]']", cwd=tmp_path)  # muon has none
    assert result.returncode == 2
    assert result.stderr.startswith("error: optimizer.betas=[0.9,0.9]: no such key; accepted here:")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "demi"], "sweep=demi: expected one of appendix_a_batch_size, "),
        (["run", "demo", "scale=huge"], "scale=huge: expected one of tiny"),
        (["run", "demo", "seed=1"], "seed=1: no such key; did you mean seeds?"),
        (["run", "demo", "num_parallel=two"], "num_parallel=two: value 'two'"),
        (["run", "demo", "num_parallel=0"], "launcher.num_parallel=0: expected 1 or more"),
        (["run", "demo", "seeds=[]"], "seeds=[]: expected at least one seed"),
        (["run", "demo", "seeds=[0"], "seeds=[0: expected a YAML value"),
        (["run", "demo", "nonsense"], "argument=nonsense: expected key=value, with a key of seeds, "),
        (["walk", "demo"], "command=walk: expected one of run, status, retry, cancel, prune"),
        (["status", "demo"], "sweep=demo: expected a sweep that was run into runs: there is none"),
        (["run", "demo", "launcher.nodes=2"], "hydra.launcher.nodes=2: no such key; accepted here: name, num_parallel"),
        (["run", "demo", "launcher=pbs"], "hydra/launcher=pbs: expected one of "),
        (["run"], "command=run: expected run <sweep> [key=value ...]"),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2(tmp_path, arguments, message):
    result = sweep(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_cell_is_named_and_the_others_run_then_only_it_is_missing(tmp_path, tmp_path_factory):
    """A sweep file of one's own, given by its path."""
    data_root = tmp_path_factory.getbasetemp().parent / "data"
    scale = {"trainer.num_steps": 2, "data.num_validation_sequences": 8, "data.root": str(data_root)}
    mine = {"claim": "none", "paper": "none", "seeds": [0], "grid": {"optimizer": ["adamw", "muon"]}}
    (tmp_path / "mine.yaml").write_text(json.dumps(mine | {"scales": {"tiny": scale}}))
    first = sweep("run", "mine.yaml", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    runs = records.find_runs(tmp_path / "runs" / "mine")
    assert [run.summary["optimizer"] for run in runs if run.summary] == ["adamw", "muon"]
    (runs[0].folder / records.SUMMARY_FILE).unlink()
    with records.locked(runs[0].folder):
        second = sweep("run", "mine.yaml", cwd=tmp_path)
        assert second.returncode == 1
        assert f"left alone, as another process is running it: runs/mine/{runs[0].folder.name}" in second.stderr
    third = sweep("run", "mine.yaml", cwd=tmp_path)
    assert third.returncode == 0 and "2 runs, 1 finished before" in third.stdout
    fourth = sweep("run", "mine.yaml", cwd=tmp_path)
    assert fourth.returncode == 0 and "2 runs, 2 finished before" in fourth.stdout


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_leaves_no_process_and_no_finished_run(tmp_path, tmp_path_factory, start, how):
    data_root = tmp_path_factory.getbasetemp().parent / "data"
    scale = {"trainer.num_steps": 100000, "trainer.eval_every": "null", "data.root": str(data_root)}
    mine = {"claim": "none", "paper": "none", "seeds": [0, 1, 2], "scales": {"tiny": scale}}
    (tmp_path / "mine.yaml").write_text(json.dumps(mine))
    process = start("asyncpp.sweep", "run", "mine.yaml")
    while sum(bool(run.metrics()) for run in records.find_runs(tmp_path)) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(how)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75
    assert "interrupted; run the same command again" in stderr and "Traceback" not in stderr
    runs = records.find_runs(tmp_path)
    assert sorted(run.summary["status"] if run.summary else "none" for run in runs) == ["interrupted"] * 2 + ["none"]
    for run in runs:
        (run.folder / records.LOCK_FILE).touch()
        with records.locked(run.folder):  # nobody else holds it any more
            assert not records.is_finished(run.folder)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_cell_that_is_stopped_while_it_imports_says_so_and_did_not_fail(tmp_path, tmp_path_factory, start, how):
    data_root = tmp_path_factory.getbasetemp().parent / "data"
    scale = {"trainer.num_steps": 100000, "data.num_validation_sequences": 8, "data.root": str(data_root)}
    mine = {"claim": "none", "paper": "none", "seeds": [0], "scales": {"tiny": scale}}
    (tmp_path / "mine.yaml").write_text(json.dumps(mine))
    process = start("asyncpp.sweep", "run", "mine.yaml")
    while not (outputs := list(tmp_path.glob(f"runs/mine/*/{records.OUTPUT_FILE}"))):  # made as its process is started
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(how)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75 and "Traceback" not in stderr
    assert outputs[0].read_text() == "interrupted; run the same command again to go on\n"
    (cell,) = states_of(Ledger(tmp_path / "runs" / "mine"))
    assert (cell.state, cell.error) == (State.STOPPED, None)


@pytest.mark.parametrize("name", ["q,1=2", "é (x) [y]", "it's", "a\\'b", "123", "~x", "null", "a b"])
def test_a_place_of_any_name_reaches_the_run_as_it_is(name):
    (cell, *_) = expand("demo", load_sweep("demo"), SweepOptions(runs_dir=f"/r/{name}"))
    assert cell.config.runs_dir == f"/r/{name}"


@pytest.mark.parametrize("name", ["a${seed}", "${oc.env:HOME}", "${"])
def test_a_name_that_would_be_another_keys_value_is_refused(tmp_path, name):
    file = tmp_path / f"{name}.yaml"
    file.write_text("claim: none\npaper: none\nseeds: [0, 1]\nscales: {tiny: {}}\n")
    with pytest.raises(ConfigError) as refusal:
        expand(str(file), load_sweep(str(file)), SweepOptions())
    assert str(refusal.value).startswith(f"sweep_name={name}: expected a name without ${{, ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scales: {}", "scales={}: expected at least one"),
        ("scales: {tiny: {}}\ncells: []", "cells=[]: expected at least one"),
        ("scales: {tiny: {}}\ngrid: {optimizer: []}", "grid.optimizer=[]: expected at least one"),
        ("scales: {tiny: {trainer.dry_run: true}}", "trainer.dry_run=True: expected false in a sweep"),
        ("scales: {tiny: {}}\nnonsense: 1", "nonsense=1: no such key; accepted here: claim, paper"),
        ("scales: [", "sweep=mine.yaml: expected a sweep file"),
        ("scales: {tiny: {data.root: 'd${x}'}}", "scales.tiny.data.root=d${x}: interpolation key 'x' not found"),
        ("scales: {tiny: {}}\npaper_scale: ${x:1}", "paper_scale=${x:1}: unsupported interpolation type x"),
        ("scales: \udcff", "sweep=mine.yaml: expected a sweep file"),
    ],
)
def test_a_bad_sweep_file_is_one_line(tmp_path, text, message):
    head = "claim: none\npaper: none\nseeds: [0]\n"
    (tmp_path / "mine.yaml").write_bytes((head + text).encode("utf-8", "surrogateescape"))
    result = sweep("run", "mine.yaml", cwd=tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize("runs_dir", ["/proc/x", "a_file/x"])
def test_a_place_that_cannot_be_written_is_refused_before_the_data_is_prepared(tmp_path, runs_dir):
    (tmp_path / "a_file").touch()
    result = sweep("run", "demo", f"runs_dir={runs_dir}", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: runs_dir={runs_dir}: expected a folder that can be written")
    assert [path.name for path in tmp_path.iterdir()] == ["a_file"]


def test_an_unknown_sweep_names_the_known_ones():
    with pytest.raises(ConfigError, match="sweep=nothing: expected one of"):
        load_sweep("nothing")
