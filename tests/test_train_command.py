"""``python -m asyncpp.train`` as a user meets it: answers, exit codes, run folders."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncpp import records

FEW_STEPS = ("trainer.num_steps=4", "data.num_validation_sequences=8", "trainer.eval_every=2")
REPOSITORY = Path(__file__).parents[1]


def train(*overrides: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncpp.train", *overrides]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture
def data(tmp_path_factory) -> str:
    """The prepared corpus, shared by all tests of all workers."""
    return f"data.root={tmp_path_factory.getbasetemp().parent / 'data'}"


BAD_INPUT = {
    "optimizer.lrr=1": "optimizer.lrr=1: no such key; did you mean lr? accepted here:",
    "optimizr=adamw": "optimizr=adamw: no such key; did you mean optimizer?",
    "optimizer=adamv": "optimizer=adamv: expected one of ",
    "optimizer=3": "optimizer=3: ",
    "optimizer.lr=abc": "optimizer.lr=abc: value 'abc' of type 'str' could not be converted to float",
    "optimizer.lr=-1": "optimizer.lr=-1.0: expected a positive number",
    "optimizer.betas=[0.9]": "optimizer.betas=[0.9]: ",
    "optimizer.betas=[0.9,1.0]": "optimizer.betas=[0.9, 1.0]: expected 2 numbers in [0, 1)",
    "optimizer.betas=3": "optimizer.betas=3: ",
    "optimizer.betas=[0.9,x]": "optimizer.betas[1]=x: value 'x' of type 'str' could not be converted to float",
    "optimizer.lr=null": "optimizer.lr=null: ",
    "+nonsense=1": "nonsense=1: no such key; accepted here: model, data,",
    "+model.hidden_sizes=1": "model.hidden_sizes=1: no such key; did you mean hidden_size? accepted here:",
    "trainer=3": "trainer=3: expected",
    "seed=x": "seed=x: expected a value of type int",
    "seed=-1": "seed=-1: expected zero or more, below 2**32",
    "model.num_heads=5": "model.num_heads=5: expected a divisor of model.hidden_size=96",
    "lr_schedule.lr_warmup_steps=500": "lr_schedule.lr_warmup_steps=500: expected 0 to trainer.num_steps=400, or null",
    "trainer.num_micro_batches=3": "trainer.batch_size=16: expected a multiple of trainer.num_micro_batches=3",
    "trainer.num_steps=0": "trainer.num_steps=0: expected 1 or more",
    "trainer.device=tpu": "trainer.device=tpu: expected cpu, cuda, or cuda:<index>",
    "correction.strength=1": "correction.strength=1: no such key",
    "pipeline.num_stages=5": "pipeline.num_stages=5: expected at most model.num_layers=4",
    "model.vocab_size=1000": "model.vocab_size=1000: expected at least data.vocab_size=2048",
    "seed=18446744073709551616": "seed=18446744073709551616: expected zero or more, below 2**32",
    "trainer.num_threads=99999999": "trainer.num_threads=99999999: expected at most 1024",
    "trainer.device=cpu:abc": "trainer.device=cpu:abc: expected cpu, cuda, or cuda:<index>",
    "model.init_std=inf": "model.init_std=inf: expected a finite number",
    "optimizer.betas=[0.9,nan]": "optimizer.betas=[0.9, nan]: expected finite numbers",
    "optimizer.name=../../x": "optimizer.name=../../x: expected letters, digits and underscores",
    "optimizer._target_=os.system": "optimizer._target_=os.system: expected the import path of a dataclass",
    "optimizer._target_=nosuch.mod": "optimizer._target_=nosuch.mod: expected the import path of a dataclass",
    "runs_dir=": "runs_dir=: expected the path of a folder",
    "runs_dir=/proc/x": "runs_dir=/proc/x: expected a folder that can be written",
    "sweep_name=a/b": "sweep_name=a/b: expected a folder's name, without a slash",
    "sweep_name=..": "sweep_name=..: expected a folder's name",
    "sweep_name=.hidden": "sweep_name=.hidden: expected a folder's name, without a slash and without a dot in front",
    "nonsense": "nonsense",
    "optimizer=[adamw": "optimizer=[adamw",
    "optimizer=adamw,muon": "optimizer=adamw,muon",
}


@pytest.mark.parametrize("override", BAD_INPUT)
def test_bad_input_is_one_line_with_exit_code_2_and_leaves_nothing(tmp_path, override):
    result = train(override, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and BAD_INPUT[override] in line
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=1e-3,-1", "optimizer.lr=-1.0: expected a positive number"),
        ("runs_dir=fine,/proc/x", "runs_dir=/proc/x: expected a folder that can be written"),
        ("seed=range(0,2,0)", "command line=-m seed=range(0,2,0):"),
    ],
)
def test_every_cell_is_checked_before_the_first_one_starts(tmp_path, override, message):
    result = train("-m", override, cwd=tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("runs_dir", ["/proc/runs", "a_file/runs"])
def test_a_run_folder_that_cannot_be_written_is_refused(tmp_path, data, runs_dir):
    (tmp_path / "a_file").touch()
    result = train(f"runs_dir={runs_dir}", data, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(
        f"error: runs_dir={runs_dir}: expected a folder that can be written"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["a_file"]


def test_help_and_config_are_printed_without_torch(tmp_path):
    """Measured where it can be counted: the modules that were imported."""
    script = (
        "import sys, runpy\n"
        "sys.argv = ['train', *sys.argv[1:]]\n"
        "try: runpy.run_module('asyncpp.train', run_name='__main__')\n"
        "except SystemExit as end: code = end.code\n"
        "print('torch' in sys.modules, 'pandas' in sys.modules, code)"
    )
    for arguments in (["--help"], ["--cfg", "job"], ["optimizer.lr=-1"], ["optimizer.lrr=1"]):
        result = subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert result.stdout.splitlines()[-1].startswith("False False"), arguments
    assert list(tmp_path.iterdir()) == []


def test_four_cells_run_once(tmp_path, data):
    grid = ("-m", "optimizer=adamw,muon", "correction=none,ef", *FEW_STEPS, data)
    first = train(*grid, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    runs = records.find_runs(tmp_path)
    assert sorted((run.summary["optimizer"], run.summary["correction"]) for run in runs) == [
        ("adamw", "ef"),
        ("adamw", "none"),
        ("muon", "ef"),
        ("muon", "none"),
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs"]
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")}
    second = train(*grid, cwd=tmp_path)
    assert second.returncode == 0
    assert second.stdout.count("finished before") == 4
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json*")} == written


def test_a_run_leaves_what_a_reader_needs(tmp_path, data):
    result = train("correction=ef", *FEW_STEPS, data, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (run,) = records.find_runs(tmp_path)
    assert run.folder.parent == tmp_path / "runs" / "default"
    summary = run.summary
    assert summary is not None
    expected = {
        "status": "finished", "sweep_name": "default", "model": "tiny", "optimizer": "adamw", "delay": "one_step",
        "correction": "ef", "pipeline": "simulated", "seed": 0, "num_steps": 4, "tokens_seen": 4 * 16 * 64,
        "staleness_updates": 1, "optimizer_state_copies": 2.0, "correction_state_copies": 1.0,
    }  # fmt: skip
    assert expected.items() <= summary.items()
    assert run.folder.name == f"tiny-adamw-one_step-ef-seed0-{summary['config_hash']}"
    assert 0 < summary["val_loss"] < 10 and 0 < summary["val_loss_z"] < 10
    rows = run.metrics()
    steps = [row for row in rows if "train/loss" in row]
    validations = [row for row in rows if "val/loss" in row]
    assert [row["step"] for row in steps] == [0, 1, 2, 3]
    assert [row["step"] for row in validations] == [2, 4]
    assert validations[-1]["val/loss"] == summary["val_loss"]
    assert [row["pipeline/staleness_updates"] for row in steps] == [0, 1, 1, 1]
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["commit"] == summary["commit"] and environment["packages"]["torch"]


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path, data):
    def rows(folder: str, seed: int) -> list[dict]:
        result = train(f"seed={seed}", f"runs_dir={folder}", *FEW_STEPS, data, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        (run,) = records.find_runs(tmp_path / folder)
        return [{k: v for k, v in row.items() if not k.startswith(records.TIME_PREFIX)} for row in run.metrics()]

    first, again, other = rows("first", 1), rows("again", 1), rows("other", 2)
    assert first == again
    assert all(a["train/loss"] != b["train/loss"] for a, b in zip(first, other, strict=True) if "train/loss" in a)


def test_an_unfinished_run_starts_again_and_a_locked_one_is_left_alone(tmp_path, data):
    assert train(*FEW_STEPS, data, cwd=tmp_path).returncode == 0
    (run,) = records.find_runs(tmp_path)
    whole = run.metrics()
    (run.folder / records.SUMMARY_FILE).unlink()
    with records.locked(run.folder):
        refused = train(*FEW_STEPS, data, cwd=tmp_path)
        assert refused.returncode == 1 and "is being written by another process" in refused.stderr
    with (run.folder / records.METRICS_FILE).open("a") as file:
        file.write('{"step": 4, "train/lo')
    assert train(*FEW_STEPS, data, cwd=tmp_path).returncode == 0
    assert [row["step"] for row in run.metrics()] == [row["step"] for row in whole]
    assert records.is_finished(run.folder)


def test_a_run_that_diverges_fails_with_one_line(tmp_path, data):
    result = train(
        "optimizer.lr=1e30", "trainer.max_skipped_steps=2", *FEW_STEPS, "trainer.eval_every=null", data, cwd=tmp_path
    )
    assert result.returncode == 1
    assert "no finite gradient in 2 steps in a row" in result.stderr and "Traceback" not in result.stderr
    (run,) = records.find_runs(tmp_path)
    assert run.summary is not None and run.summary["status"] == "failed"
    assert "try a smaller optimizer.lr" in run.summary["error"]


def test_a_loss_that_is_not_finite_is_no_result(tmp_path, data):
    """EF of a huge strength: the weights overflow while no gradient has yet been refused ten times in a row."""
    result = train("correction=ef", "correction.strength=1e30", *FEW_STEPS, data, cwd=tmp_path)
    assert result.returncode == 1
    assert "error: the validation loss is" in result.stderr and "Traceback" not in result.stderr
    (run,) = records.find_runs(tmp_path)
    assert run.summary is not None and run.summary["status"] == "failed" and "val_loss" not in run.summary
    assert "NaN" not in (run.folder / records.METRICS_FILE).read_text()


def test_a_dry_run_describes_every_parameter_once_and_leaves_nothing(tmp_path):
    result = train("trainer.dry_run=true", "optimizer=muon", "pipeline.num_stages=2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    data_line, budget, hardware, memory, first, *lines = result.stdout.splitlines()
    assert data_line == "data: data/sotu is not prepared; the run prepares it, without a download"
    assert budget == "budget: 400 steps of 1,024 tokens are 409,600; micro-batches a step: 1"
    assert hardware.startswith("hardware: planned as cpu, ")
    assert memory.startswith("memory of rank 0: 0.0")
    assert first.endswith(": 787,296 parameters")
    assert [line for line in lines if line.startswith("part")] == [
        "part 0: delay 1, 3 layers, 492,096 parameters", "part 1: delay 1, 1 layers, 295,200 parameters",
    ]  # fmt: skip
    groups = [line for line in lines if not line.startswith("part")]
    elements = [int(line.split(" elements")[0].split()[-1].replace(",", "")) for line in groups]
    assert sum(elements) == 787_296
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_stops_a_run_after_an_update_and_it_goes_on_from_there(tmp_path, data, start, how):
    """A second signal, moments later, does no harm."""
    overrides = ("trainer.num_steps=100000", "trainer.eval_every=null", "lr_schedule=constant", data)
    process = start("asyncpp.train", *overrides)
    while not any(run.metrics() for run in records.find_runs(tmp_path)):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(how)
    process.send_signal(how)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    (run,) = records.find_runs(tmp_path)
    num_steps = len(run.metrics())
    told = f"interrupted after {num_steps} updates, which are saved; run the same command again to go on"
    assert told in stderr and "Traceback" not in stderr
    assert run.summary is not None and run.summary["status"] == "interrupted" and "val_loss" not in run.summary
    assert not records.is_finished(run.folder)
    assert [row["step"] for row in run.metrics()] == list(range(len(run.metrics())))


def test_a_signal_ends_all_the_cells(tmp_path, data, start):
    """The first stops after an update, saved; the second is never begun."""
    overrides = ("-m", "seed=0,1", "trainer.num_steps=100000", "trainer.eval_every=null", "lr_schedule=constant", data)
    process = start("asyncpp.train", *overrides)
    while not any(run.metrics() for run in records.find_runs(tmp_path)):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75 and "Traceback" not in stderr
    (run,) = records.find_runs(tmp_path)
    assert run.summary is not None and run.summary["status"] == "interrupted"
