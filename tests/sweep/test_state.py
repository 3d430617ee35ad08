"""What a sweep's ledger, its run folders and Slurm together say of each cell."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from asyncpp import records
from asyncpp.launcher.ledger import CLAIM_FILE, Entry, Ledger
from asyncpp.launcher.slurm_commands import SlurmFailed
from asyncpp.sweep import control
from asyncpp.sweep.control import cancel, retry
from asyncpp.sweep.expand import SweepOptions, expand
from asyncpp.sweep.file import load_sweep
from asyncpp.sweep.prune import prune
from asyncpp.sweep.state import State, states_of
from asyncpp.sweep.status import status


def entry(run: str, job: str | None, launcher: str = "slurm", code: str = "c0") -> Entry:
    return Entry(run, [], 10, {"name": launcher, "num_parallel": 2}, "unknown", code, job)


def made(ledger: Ledger, run: str, **files: str) -> Path:
    folder = ledger.folder / run
    folder.mkdir(parents=True, exist_ok=True)
    names = {"summary": records.SUMMARY_FILE, "metrics": records.METRICS_FILE, "output": records.OUTPUT_FILE}
    for name, text in files.items():
        (folder / names[name]).write_text(text)
    return folder


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Commands that print what they are given."""

    def provide(**outputs: str) -> None:
        for name, output in outputs.items():
            script = tmp_path / "bin" / name
            script.parent.mkdir(exist_ok=True)
            script.write_text(f"#!/bin/sh\nprintf '%s' '{output}'\n")
            script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return provide


ROW = json.dumps({"step": 3, "train/loss": 4.5, "time/step_s": 2.0}) + "\n"


def test_a_line_that_a_crash_cut_hides_no_other(tmp_path: Path):
    ledger = Ledger(tmp_path / "s")
    ledger.add([entry("a", None, "local")])
    with ledger.file.open("a") as file:
        file.write('{"run": "b", "ov')
    ledger.add([entry("c", None, "local")])
    ledger.add([entry("d", None, "local")])
    assert list(ledger.entries()) == ["a", "c", "d"]


def test_a_run_that_outlived_its_launch_is_left_alone(tmp_path: Path, capsys):
    """Its launch's number may be another process's by now."""
    ledger = Ledger(tmp_path / "s")
    ledger.add([entry("a", f"{socket.gethostname()}:{os.getpid()}", "local")])
    folder = made(ledger, "a", metrics=ROW)
    with records.locked(folder):
        assert cancel("s", [f"runs_dir={tmp_path}"]) == 1
    assert "left alone: a: their launch has died" in capsys.readouterr().err


def test_what_failed_is_started_again_where_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As after the folder was moved, or where a relative one is seen from another."""
    first, second, *_ = expand("demo", load_sweep("demo"), SweepOptions(seeds=[0], runs_dir="then"))
    ledger = Ledger(tmp_path / "now" / "moved")
    for cell, status_ in ((first, "failed"), (second, "finished")):
        folder = made(ledger, cell.folder.name, summary=json.dumps({"status": status_}))
        (folder / records.CONFIG_FILE).write_text(cell.config.to_yaml())
        ledger.add([entry(cell.folder.name, "host:1", "local")])
    started = []
    monkeypatch.setattr(control, "launch", lambda cells: started.extend(cells) or 0)
    assert retry("moved", [f"runs_dir={tmp_path / 'now'}", "launcher.num_parallel=3"]) == 0
    (again,) = started
    assert again.folder == ledger.folder / first.folder.name and again.config.hash() == first.config.hash()
    assert again.launcher.num_parallel == 3


def test_every_state_and_what_is_said_of_it(tmp_path: Path, slurm):
    ledger = Ledger(tmp_path / "s")
    slurm(squeue="7_1|RUNNING\n7_2|PENDING\n", sacct="7_3|FAILED\n7_4|CANCELLED by 0\n7_5|NODE_FAIL\n7_6|TIMEOUT\n")
    ledger.add(entry(run, job) for run, job in
               [("done", "7_0"), ("runs", "7_1"), ("waits", "7_2"), ("failed", "7_3"), ("cancelled", "7_4"),
                ("lost", "7_5"), ("late", "7_6"), ("never", None)])  # fmt: skip
    made(ledger, "done", summary='{"status": "finished", "val_loss": 3.25}', metrics=ROW)
    made(ledger, "runs", summary='{"status": "failed", "error": "of the launch before"}', metrics=ROW)
    made(ledger, "failed", summary='{"status": "failed", "error": "ValueError: [one]\\ntwo lines"}', metrics=ROW)
    made(ledger, "late", output="step 3\nerror: the run was killed by SIGKILL\n\n", metrics=ROW)
    ledger.jobs.mkdir()
    (ledger.jobs / "7_5_0_log.err").write_text("slurmstepd: error: node is gone\n")
    told = {cell.run: (cell.state, cell.step, cell.loss, cell.left_s, cell.error) for cell in states_of(ledger)}
    assert told == {
        "done": (State.DONE, 10, 3.25, None, None),
        "runs": (State.RUNNING, 4, 4.5, 12.0, None),
        "waits": (State.QUEUED, 0, None, None, None),
        "failed": (State.FAILED, 4, 4.5, None, "two lines"),
        "cancelled": (State.STOPPED, 0, None, None, None),
        "lost": (State.FAILED, 0, None, None, "slurmstepd: error: node is gone (Slurm: NODE_FAIL)"),
        "late": (State.FAILED, 4, 4.5, None, "error: the run was killed by SIGKILL (Slurm: TIMEOUT)"),
        "never": (State.MISSING, 0, None, None, None),
    }


def test_cells_of_this_machine_are_known_by_their_locks(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.add(entry(run, "host:1", "local") for run in ("runs", "waits", "stopped", "missing"))
    made(ledger, "stopped", summary='{"status": "interrupted"}', metrics=ROW)
    with (
        records.locked(made(ledger, "runs")),
        records.locked(ledger.folder / "runs", CLAIM_FILE),
        records.locked(made(ledger, "waits"), CLAIM_FILE),
    ):
        states = [cell.state for cell in states_of(ledger)]
    assert states == [State.RUNNING, State.QUEUED, State.STOPPED, State.MISSING]


@pytest.mark.parametrize(
    ("exit_code", "words", "told"),
    [
        (None, "", (State.STOPPED, None)),  # all processes were killed at once, so none of them says anything
        (None, "note: 8 threads", (State.STOPPED, None)),
        (None, "error: data.root=x: gone", (State.STOPPED, "error: data.root=x: gone")),  # it outlived its launch
        (75, "interrupted; run the same command again to go on", (State.STOPPED, None)),
        (-9, "error: the run was killed by SIGKILL", (State.FAILED, "error: the run was killed by SIGKILL")),
        (2, "error: data.root=x: gone", (State.FAILED, "error: data.root=x: gone")),
        (1, "", (State.FAILED, "it left no word")),
    ],
)
def test_a_process_that_left_no_summary_failed_only_if_it_ended_by_itself(tmp_path: Path, exit_code, words, told):
    ledger = Ledger(tmp_path)
    started = entry("a", "host:1", "local")
    ledger.add([started if exit_code is None else started.ended_with(exit_code)])
    made(ledger, "a", output=words)
    (cell,) = states_of(ledger)
    assert (cell.state, cell.error) == told


def test_a_ledger_keeps_the_last_word_of_each_run_and_passes_over_a_half_line(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.add([entry("a", None), entry("b", None)])
    ledger.add([entry("a", "1")])
    with ledger.file.open("a") as file:
        file.write('{"run": "b", "job": "2"')
    assert {run: found.job for run, found in ledger.entries().items()} == {"a": "1", "b": None}


def test_without_an_answer_from_slurm_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ledger = Ledger(tmp_path)
    ledger.add([entry("a", "1")])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SlurmFailed, match="there is no squeue here"):
        states_of(ledger)


def test_status_as_a_table_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ledger = Ledger(tmp_path / "s")
    ledger.add([entry("good", "host:1", "local"), entry("bad", "host:1", "local")])
    made(ledger, "good", summary='{"status": "finished", "val_loss": 3.25}')
    made(ledger, "bad", summary='{"status": "failed", "error": "loss [nan] after 3"}')
    assert status("s", [f"runs_dir={tmp_path}"]) == 1
    table = capsys.readouterr().out
    assert "s: 1 done, 1 failed" in table and "loss [nan] after 3" in table and "3.2500" in table
    assert status("s", [f"runs_dir={tmp_path}", "json=true"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["counts"] == {"done": 1, "failed": 1}
    assert report["cells"][1]["error"] == "loss [nan] after 3"


def test_prune_removes_only_what_it_lists_and_only_when_confirmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ledger = Ledger(tmp_path / "s")
    ledger.add([entry("done", "h:1", "local", "old"), entry("stopped", "h:1", "local", "new"), entry("none", None)])
    done = made(ledger, "done", summary='{"status": "finished", "val_loss": 3.25}', metrics=ROW)
    stopped = made(ledger, "stopped", summary='{"status": "interrupted"}', metrics=ROW)
    made(ledger, "none")
    kept = [done / "checkpoints", stopped / "checkpoints", ledger.code / "new"]
    gone = [ledger.folder / "none", ledger.code / "old"]
    for folder in (*kept, *gone):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "file").write_bytes(b"x" * 2**20)
    place = f"runs_dir={tmp_path}"
    assert prune("s", [place]) == 0
    listed = capsys.readouterr().out
    assert [str(path) in listed for path in (*gone, *kept)] == [True] * 2 + [False] * 3
    assert "2.0 MiB could go; confirm=true removes it" in listed and all(path.is_dir() for path in gone)
    assert prune("s", [place, "confirm=true"]) == 0
    assert [path.is_dir() for path in (*gone, *kept)] == [False] * 2 + [True] * 3
    assert prune("s", [place, "confirm=true", "checkpoints=true"]) == 0
    assert [path.is_dir() for path in kept] == [False, True, True]
    assert (done / records.SUMMARY_FILE).is_file() and (done / records.METRICS_FILE).is_file()
