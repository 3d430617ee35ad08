"""Trackers see what metrics.jsonl holds, a resumed run goes on with the same one, and none of them can harm a run."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
import wandb
from small_run import configured
from wandb_file import history, read_records, summary

from asyncpp import records
from asyncpp.config import Config
from asyncpp.errors import ConfigError
from asyncpp.records import Status
from asyncpp.trainer.run import run
from asyncpp.trainer.simulated import Simulated
from asyncpp.trainer.tracking import mirror as mirror_module
from asyncpp.trainer.tracking.mirror import Mirror
from asyncpp.trainer.tracking.tracker import TrackedRun, Tracker
from asyncpp.trainer.tracking.wandb_tracker import WandbTracker

SHORT = (
    "model.num_layers=2",
    "trainer.num_micro_batches=1",
    "trainer.eval_every=2",
    "trainer.num_steps=6",
    "sweep_name=small",
)

OFFLINE = ("logger=wandb", "logger.mode=offline")  # whatever keys this machine has


def short_run(folder: Path, data: str, *overrides: str) -> Config:
    return configured(folder, data, *SHORT, *overrides)


def metrics(config: Config) -> list[dict]:
    return records.read_metrics(config.folder / records.METRICS_FILE)


def merged_by_step(rows: list[dict]) -> dict[int, dict]:
    """wandb has one row a step; ours has one for the step, and one for a validation before it."""
    merged: dict[int, dict] = {}
    for row in rows:
        merged.setdefault(row["step"], {}).update(row)
    return merged


def stop_after(monkeypatch: pytest.MonkeyPatch, num_updates: int | None) -> None:
    monkeypatch.setattr(Simulated, "stops_after", lambda self, done: done == num_updates)


def offline_files(config: Config) -> list[Path]:
    return sorted(config.folder.glob(f"wandb/offline-run-*/run-{config.hash()}.wandb"))


def test_wandb_has_every_row_and_a_resumed_run_is_the_same_run_there(tmp_path, data, monkeypatch):
    monkeypatch.setattr(mirror_module, "INTERRUPTED_TIMEOUT_S", 60.0)  # this machine may have much else to do
    config = short_run(tmp_path, data, *OFFLINE)
    stop_after(monkeypatch, 3)
    assert run(config) == 75
    stop_after(monkeypatch, None)
    time.sleep(1.0)  # wandb names its folders by the second
    assert run(config) == 0
    first, second = (read_records(file) for file in offline_files(config))  # both have the configuration's hash
    for written in (first, second):
        (told,) = (record.run for record in written if record.HasField("run"))
        assert (told.run_id, told.run_group, told.project) == (config.hash(), "small", "asyncpp")
        assert told.display_name == config.folder.name
    rows = merged_by_step(metrics(config))
    seen = merged_by_step([row for row in history(first) + history(second) if "step" in row])
    assert seen == rows and set(rows) == set(range(7))
    ours = records.read_summary(config.folder)
    assert summary(first)["status"] == "interrupted" and summary(second)["status"] == "finished"
    assert summary(second)["val_loss"] == ours["val_loss"]
    assert list((config.folder / "wandb").glob("offline-run-*/files/media/images/loss_figure_*.png"))


def broken_init(**settings):
    raise wandb.errors.CommError("no route\nto host")


class BrokenRun:
    def define_metric(self, *arguments, **options) -> None:
        pass

    def log(self, row, step) -> None:
        raise OSError("disk full")


@pytest.mark.parametrize(
    ("init", "reason"), [(broken_init, "CommError: no route to host"), (lambda **_: BrokenRun(), "OSError: disk full")]
)
def test_a_wandb_that_raises_stops_no_run_and_says_so_once(tmp_path, data, monkeypatch, capsys, init, reason):
    monkeypatch.setattr(wandb, "init", init)
    config, plain = short_run(tmp_path / "wandb", data, *OFFLINE), short_run(tmp_path / "plain", data)
    assert run(config) == run(plain) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert warnings == [f"warning: logger=wandb stopped ({reason}); metrics.jsonl has everything"]
    assert [row["step"] for row in metrics(config)] == [row["step"] for row in metrics(plain)]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user's, without a key."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_online_without_a_key_is_a_warning_not_a_prompt(tmp_path, home, data, capsys):
    config = short_run(tmp_path, data, "logger=wandb", "logger.mode=online")
    assert run(config) == 0
    assert "logger.mode=online needs WANDB_API_KEY" in capsys.readouterr().err
    assert not (config.folder / "wandb").exists()


def test_wandb_is_offline_until_there_is_a_key(tmp_path, home, data, monkeypatch):
    modes: list[str] = []

    def init(mode: str, **settings) -> BrokenRun:
        modes.append(mode)
        return BrokenRun()

    monkeypatch.setattr(wandb, "init", init)
    logger = short_run(tmp_path, data, "logger=wandb").logger
    tracked = TrackedRun(tmp_path, "small", "0123abcd", {}, 0)
    WandbTracker(logger, tracked)
    (home / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (home / ".netrc").chmod(0o600)  # as `wandb login` leaves it
    WandbTracker(logger, tracked)
    (home / ".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "key")
    WandbTracker(logger, tracked)
    assert modes == ["offline", "online", "online"]


@pytest.mark.slow
def test_a_pipeline_of_processes_is_tracked_by_its_first_rank(tmp_path, data):
    config = short_run(tmp_path, data, *OFFLINE, "pipeline=2bw", "trainer.num_micro_batches=2")
    assert run(config) == 0
    (file,) = offline_files(config)
    assert merged_by_step([row for row in history(read_records(file)) if "step" in row]).keys() == set(range(7))


class Slow(Tracker):
    def __init__(self) -> None:
        self.seen: list = []
        self.go_on = threading.Event()

    def log(self, row) -> None:
        self.go_on.wait(10.0)
        self.seen.append(row)

    def finish(self, status, summary) -> None:
        self.seen.append((status, summary))


def test_a_slow_tracker_is_not_waited_for_and_loses_nothing():
    tracker = Slow()
    mirror = Mirror("slow", lambda: tracker)
    rows = [{"step": float(step)} for step in range(1000)]
    started_s = time.perf_counter()
    for row in rows:
        mirror.log(row)
    assert time.perf_counter() - started_s < 1.0 and tracker.seen == []
    tracker.go_on.set()
    mirror.close(Status.FINISHED, {"val_loss": 1.0})
    assert tracker.seen == [*rows, (Status.FINISHED, {"val_loss": 1.0})]


def test_a_tracker_that_hangs_is_left_behind(monkeypatch, capsys):
    monkeypatch.setattr(mirror_module, "INTERRUPTED_TIMEOUT_S", 0.05)
    tracker = Slow()
    mirror = Mirror("slow", lambda: tracker)
    mirror.log({"step": 0.0})
    mirror.close(Status.INTERRUPTED, {})
    tracker.go_on.set()
    assert "logger=slow stopped (not done 0.05 s after the run's end)" in capsys.readouterr().err


def test_tensorboard_shows_a_resumed_run_without_what_was_written_twice(tmp_path, data, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = short_run(tmp_path, data, "logger=tensorboard", "trainer.checkpoint_every=2")
    stop_after(monkeypatch, 3)
    assert run(config) == 75
    stop_after(monkeypatch, None)
    assert run(config) == 0
    events = EventAccumulator(str(config.folder / "tensorboard")).Reload()
    rows = metrics(config)
    for key in ("train/loss", "val/loss"):
        expected = [(row["step"], pytest.approx(row[key])) for row in rows if key in row]
        assert [(event.step, event.value) for event in events.Scalars(key)] == expected
    assert events.Tags()["images"] == ["loss_figure"]


def test_tensorboard_that_is_not_installed_is_one_line(tmp_path, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"^logger=tensorboard: needs the package tensorboard, .*pip install"):
        short_run(tmp_path, data, "logger=tensorboard")
