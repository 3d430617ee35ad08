"""A rank that dies, hangs or raises: the others stop, one line says who and why, no process is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = (
    "pipeline=2bw",
    "trainer.num_steps=100000",
    "trainer.eval_every=20",
    "lr_schedule=constant",
    "model.hidden_size=24",
    "model.num_heads=3",
    "model.ffn_size=32",
    "data.num_validation_sequences=8",
)

# What a sitecustomize module does to every process that finds it: the second stage's backward of batch 3 raises.
RAISES = """
from asyncpp.pipeline import interpreter
honest = interpreter.Interpreter._backward
def broken(self, action):
    if action.batch == 3 and self.parts[0].state.number == 1:
        raise ValueError("planted")
    honest(self, action)
interpreter.Interpreter._backward = broken
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Tokens prepared once for all runs here."""
    root = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "asyncpp.data.prepare", "data=sotu", f"data.root={root}"]
    subprocess.run(command, check=True, capture_output=True)
    return f"data.root={root}"


class Started:
    """A run in its own process group; its ranks are found by their command lines."""

    def __init__(self, cwd: Path, *overrides: str, environment: dict[str, str] | None = None) -> None:
        self.cwd = cwd
        command = [sys.executable, "-m", "asyncpp.train", *RUN, *overrides]
        self.process = subprocess.Popen(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env=os.environ | (environment or {}),
        )  # fmt: skip

    def wait_for_step(self, step: int, timeout_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            rows: list[int] = []
            with contextlib.suppress(FileNotFoundError):  # where it may write, a run finds out by a folder for a moment
                rows = [path.read_text().count('"train/loss"') for path in self.cwd.rglob("metrics.jsonl")]
            if rows and rows[0] > step:
                return
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)
        raise AssertionError("the run does not come to its steps")

    def ranks(self) -> list[int]:
        """Process numbers of everything in the run's session except its first process, ranks first to last."""
        members = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z" and int(entry.name) != self.process.pid:
                members.append((int(fields[1]), int(entry.name)))  # parent, number
        server = {parent for parent, _ in members} & {number for _, number in members}
        return sorted(number for parent, number in members if parent in server)

    def end(self, timeout_s: float = 30.0) -> tuple[int, str, str]:
        """Exit code, output, errors. Nothing of the run may be alive soon after."""
        out, errors = self.process.communicate(timeout=timeout_s)
        deadline_s = time.monotonic() + 5.0
        while self.ranks() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert self.ranks() == []
        return self.process.returncode, out, errors

    def summary(self) -> dict:
        (path,) = self.cwd.rglob("summary.json")
        return json.loads(path.read_text())


def error_lines(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if line.startswith("error:")]


def kill_one(cwd: Path, data: str, delay_s: float, victim: int, num_stages: int) -> None:
    sizes = (f"trainer.num_micro_batches={num_stages}", f"trainer.batch_size={4 * num_stages}")
    run = Started(cwd, data, f"pipeline.num_stages={num_stages}", *sizes)
    try:
        run.wait_for_step(0)
        time.sleep(delay_s)
        ranks = run.ranks()
        assert len(ranks) == num_stages
        os.kill(ranks[victim], signal.SIGKILL)
        code, _, errors = run.end()
    finally:
        run.process.kill()
    assert code == 1
    (line,) = error_lines(errors)
    assert f"rank {victim} (stage {victim})" in line and "was killed by SIGKILL" in line, errors
    assert "batch " in line
    assert run.summary()["status"] == "failed" and run.summary()["error"] == line.removeprefix("error: ")


def test_a_killed_rank_ends_the_run_with_one_line(tmp_path, data):
    kill_one(tmp_path, data, delay_s=0.1, victim=1, num_stages=2)


@pytest.mark.slow
def test_killing_any_rank_at_any_moment_never_hangs(tmp_path, data):
    chance = random.Random(5)
    for trial in range(20):
        folder = tmp_path / str(trial)
        folder.mkdir()
        num_stages = chance.choice((2, 3))
        kill_one(folder, data, chance.uniform(0.0, 1.0), chance.randrange(num_stages), num_stages)


def test_a_rank_that_hangs_is_named(tmp_path, data):
    run = Started(tmp_path, data, "trainer.num_micro_batches=2", "pipeline.timeout_s=2")
    try:
        run.wait_for_step(3)
        os.kill(run.ranks()[0], signal.SIGSTOP)
        code, _, errors = run.end()
    finally:
        run.process.kill()
    assert code == 1
    (line,) = error_lines(errors)
    assert "rank 0 (stage 0)" in line and "hangs: no answer for 2 s" in line, errors


def test_a_rank_that_hangs_at_the_start_is_named(tmp_path, data):
    """Before it has even connected."""
    run = Started(tmp_path, data, "trainer.num_micro_batches=2", "pipeline.start_timeout_s=4")
    try:
        while len(run.ranks()) < 2:
            assert run.process.poll() is None
            time.sleep(0.01)
        os.kill(run.ranks()[1], signal.SIGSTOP)
        code, _, errors = run.end()
    finally:
        run.process.kill()
    assert code == 1
    (line,) = error_lines(errors)
    assert "rank 1 (stage 1), before its first action, hangs: no answer for 4 s" in line, errors


def test_a_rank_that_raises_is_quoted(tmp_path, data):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(RAISES)
    run = Started(tmp_path, data, "trainer.num_micro_batches=2", environment={"PYTHONPATH": str(site)})
    code, _, errors = run.end(timeout_s=60.0)
    assert code == 1
    (line,) = error_lines(errors)
    assert line == "error: rank 1 (stage 1) in B3.0@2 (backward of batch 3, micro-batch 0): ValueError: planted", errors


def test_no_rank_outlives_the_process_that_started_it(tmp_path, data):
    run = Started(tmp_path, data, "trainer.num_micro_batches=2")
    run.wait_for_step(3)
    assert len(run.ranks()) == 2
    run.process.kill()
    run.end()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_ranks(tmp_path, data, how):
    run = Started(tmp_path, data, "trainer.num_micro_batches=2")
    run.wait_for_step(3)
    run.process.send_signal(how)
    code, _, errors = run.end()
    assert code == 75 and "interrupted" in errors
    assert run.summary()["status"] == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGUSR2, signal.SIGTERM])
def test_a_signal_to_every_process_of_the_run_stops_it_like_one_to_the_first(tmp_path, data, how):
    """Slurm's signals reach them all, multiprocessing's own helpers included."""
    run = Started(tmp_path, data, "trainer.num_micro_batches=2")
    run.wait_for_step(3)
    os.killpg(run.process.pid, how)
    code, _, errors = run.end()
    assert code == 75 and "which are saved" in errors, errors
    assert run.summary()["status"] == "interrupted"
