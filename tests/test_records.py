"""Run folders: whole files or none, rows read once, one writer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from asyncpp import records
from asyncpp.errors import ConfigError


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "summary.json"
    records.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        records.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_a_row_that_was_cut_is_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "a": 2}\n{"step": 2}\n{"st')
    assert records.read_metrics(path) == [{"step": 0}, {"step": 1, "a": 2}, {"step": 2}]
    assert records.read_metrics(path, containing='"a"') == [{"step": 1, "a": 2}]
    assert records.last_metrics_row(path, "step") == {"step": 2}
    assert records.last_metrics_row(path, "a") == {"step": 1, "a": 2}
    assert records.last_metrics_row(path, "b") is None


def test_the_last_row_is_found_in_a_long_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(5000)))
    assert records.last_metrics_row(path, "step") == {"step": 4999}


@pytest.mark.parametrize("num_bytes", [1, 5000, records.BLOCK_BYTES - 20, 3 * records.BLOCK_BYTES])
def test_the_last_row_is_found_however_wide_rows_are(tmp_path, num_bytes):
    """A row has times of every rank: of 64 they take 16 kB."""
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "train/loss": 1.0, "wide": "x" * num_bytes} for step in range(5)]
    path.write_text(
        "".join(f"{json.dumps(row)}\n" for row in [*rows, {"step": 4, "val/loss": 2.0}]) + '{"step": 5, "tr'
    )
    assert records.last_metrics_row(path, "train/loss") == rows[-1]
    assert list(records.lines_from_end(path)) == list(reversed(path.read_bytes().split(b"\n")))


def test_no_metrics_file_has_no_rows(tmp_path):
    assert records.read_metrics(tmp_path / "metrics.jsonl") == []
    assert records.last_metrics_row(tmp_path / "metrics.jsonl", "step") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"status": "failed"}'])
def test_only_a_whole_summary_that_says_so_is_finished(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    assert not records.is_finished(tmp_path)
    records.write_json(tmp_path / "summary.json", {"status": "finished"})
    assert records.is_finished(tmp_path)


def test_the_hash_does_not_depend_on_the_order_of_keys():
    assert records.config_hash({"a": 1, "b": [2.0]}) == records.config_hash({"b": [2.0], "a": 1})
    assert records.config_hash({"a": 1}) != records.config_hash({"a": 2})


def test_a_second_writer_is_refused_and_the_lock_goes_with_its_process(tmp_path):
    script = (
        f"from pathlib import Path; from asyncpp import records\nwith records.locked(Path({str(tmp_path)!r})): pass"
    )
    with records.locked(tmp_path):
        second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert "RunIsLocked" in second.stderr
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_who_looks_at_a_lock_keeps_nobody_from_it(tmp_path):
    (tmp_path / ".lock").touch()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            records.is_locked(tmp_path)

    other = threading.Thread(target=look)
    other.start()
    try:
        for _ in range(2000):
            with records.locked(tmp_path):
                pass
    finally:
        over.set()
        other.join()
    with records.locked(tmp_path):
        assert records.is_locked(tmp_path)
    assert not records.is_locked(tmp_path) and not records.is_locked(tmp_path / "nowhere")


def test_runs_are_found_by_their_config(tmp_path):
    for name in ("b", "a/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("")
    (tmp_path / "foreign").mkdir()
    found = records.find_runs(tmp_path)
    assert [run.folder.relative_to(tmp_path).as_posix() for run in found] == ["a/c", "b"]
    assert found[0].summary is None and found[0].metrics() == []


def test_runs_behind_links_are_found_once(tmp_path):
    scratch, runs = tmp_path / "scratch", tmp_path / "runs"
    for name in ("scratch/sweep/a", "scratch/b", "runs/other/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("")
    (runs / "sweep").symlink_to(scratch / "sweep")
    (runs / "other" / "b").symlink_to(scratch / "b")
    (runs / "latest").symlink_to(runs / "other" / "c")  # a real folder, too
    (runs / "loop").symlink_to(runs)
    (scratch / "sweep" / "loop").symlink_to(runs / "sweep")
    (runs / "broken").symlink_to(tmp_path / "nowhere")
    found = [run.folder.relative_to(runs).as_posix() for run in records.find_runs(runs)]
    assert found == ["other/b", "other/c", "sweep/a"]
    (tmp_path / "by_link").symlink_to(runs)
    assert len(records.find_runs(tmp_path / "by_link")) == 3


def test_runs_are_found_while_others_are_being_written(tmp_path):
    """Folders come and go there: a checkpoint is renamed, a place is tried."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            for number in range(20):
                (tmp_path / f"new{number}").mkdir()
            for number in range(20):
                (tmp_path / f"new{number}").rmdir()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(300):
            (run,) = records.find_runs(tmp_path)
    finally:
        over.set()
        other.join()
    assert run.folder == tmp_path / "run"


def test_a_number_that_is_not_finite_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_json(tmp_path / "summary.json", {"val_loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_asking_whether_a_folder_can_be_written_leaves_nothing(tmp_path):
    records.require_writable(tmp_path / "a" / "b", "runs_dir", "a")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="runs_dir=x: expected a folder that can be written"):
        records.require_writable(tmp_path / "file" / "b", "runs_dir", "x")
