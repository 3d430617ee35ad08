"""python -m asyncpp.trace on a run of real processes: what it prints, writes and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from asyncpp import records
from asyncpp.errors import EXIT_BAD_INPUT, EXIT_DONE
from asyncpp.pipeline.trace import trace_file
from asyncpp.trace import main

PIPELINE = ("pipeline=2bw", "pipeline.num_stages=2", "trainer.num_micro_batches=2", "trainer.batch_size=2")
SHORT = ("trainer.num_steps=8", "trainer.eval_every=null", "data.num_validation_sequences=2", "data.sequence_length=16")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """Two batches that flush, then six that do not, of which the trace has begun before."""
    runs_dir = tmp_path_factory.mktemp("traced")
    data = f"data.root={tmp_path_factory.getbasetemp().parent / 'data'}"
    late = ("correction=sync_start", "correction.sync_fraction=0.25", "pipeline.trace_batches=7")
    command = [sys.executable, "-m", "asyncpp.train", *PIPELINE, *SHORT, *late, f"runs_dir={runs_dir}", data]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (run,) = records.find_runs(runs_dir)
    return run.folder


def test_json_is_one_document_with_plan_and_reality(run_folder, capsys):
    assert main([f"run={run_folder}", "json=true"]) == EXIT_DONE
    captured = capsys.readouterr()
    assert captured.err == ""
    (run,) = json.loads(captured.out)["runs"]
    assert (run["schedule"], run["first_batch"], run["num_batches"]) == ("two_bw", 2, 6)
    assert 0.0 <= run["planned"]["steady_bubble_fraction"] < 1.0
    assert 0.0 < run["measured"]["steady_bubble_fraction"] < 1.0
    computed = []
    for stage in run["stages"]:
        assert all(stage[f"{name}_ms"] > 0.0 for name in ("forward", "backward", "update"))
        shares = [value for name, value in stage.items() if name.endswith("_fraction")]
        assert sum(shares) == pytest.approx(1.0) and min(shares) > -1e-9
        computed.append(stage["compute_fraction"] + stage["update_fraction"])
    assert min(computed) <= 1.0 - run["measured"]["steady_bubble_fraction"] <= max(computed)


def test_the_picture_shows_both(run_folder, tmp_path, capsys):
    picture = tmp_path / "trace.svg"
    assert main([f"run=[{run_folder},{run_folder}]", f"out={picture}"]) == EXIT_DONE
    printed = capsys.readouterr().out
    assert printed.count("planned") == printed.count("measured") == 2
    text = " ".join(ElementTree.fromstring(picture.read_text()).itertext())
    assert text.count("two_bw planned: bubble") == text.count("two_bw measured: bubble") == 2
    assert "time, in milliseconds" in text


def refused(arguments, capsys) -> str:
    assert main(arguments) == EXIT_BAD_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_bad_input_is_one_line(run_folder, tmp_path, capsys):
    assert "run=nowhere: there is no such folder" in refused(["run=nowhere"], capsys)
    assert f"run={tmp_path}: expected a run's folder" in refused([f"run={tmp_path}"], capsys)
    assert "run=[]: expected a run's folder" in refused(["run=[]"], capsys)
    assert "out=a.gif: expected a file in" in refused([f"run={run_folder}", "out=a.gif"], capsys)
    assert "out=/proc/a.svg: cannot be written" in refused([f"run={run_folder}", "out=/proc/a.svg"], capsys)
    assert "replica=1: expected one of 1" in refused([f"run={run_folder}", "replica=1"], capsys)


@pytest.fixture
def copy(run_folder, tmp_path) -> Path:
    """A run to be damaged."""
    for path in [run_folder / records.CONFIG_FILE, *(trace_file(run_folder, rank) for rank in range(2))]:
        (tmp_path / path.relative_to(run_folder)).parent.mkdir(exist_ok=True)
        (tmp_path / path.relative_to(run_folder)).write_bytes(path.read_bytes())
    return tmp_path


def test_a_run_without_a_trace_is_told_how_to_have_one(copy, capsys):
    trace_file(copy, 1).unlink()
    assert "training with pipeline.trace_batches=8 records one" in refused([f"run={copy}"], capsys)


@pytest.mark.parametrize("keep", [0, 60, -1], ids=["nothing", "half a header", "all but a byte"])
def test_a_trace_that_cannot_be_read_is_refused(copy, keep, capsys):
    path = trace_file(copy, 0)
    path.write_bytes(path.read_bytes()[:keep])
    assert "its trace cannot be read" in refused([f"run={copy}"], capsys)


def test_a_trace_of_too_few_batches_is_refused(copy, capsys):
    config = (copy / records.CONFIG_FILE).read_text()
    assert "sync_fraction: 0.25" in config
    (copy / records.CONFIG_FILE).write_text(config.replace("sync_fraction: 0.25", "sync_fraction: 0.75"))
    assert "raise pipeline.trace_batches" in refused([f"run={copy}"], capsys)
