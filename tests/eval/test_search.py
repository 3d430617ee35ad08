"""Which checkpoints are scored: those that are there, or all that a run writes while it trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from asyncpp.errors import ConfigError
from eval import search
from eval.search import find, follow


@pytest.fixture
def run(tmp_path) -> Path:
    """A run that has begun."""
    return begin(tmp_path / "runs" / "one")


def begin(folder: Path) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").touch()
    return folder


def write(run: Path, step: int) -> Path:
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir()
    return folder


def end(run: Path, status: str) -> None:
    (run / "summary.json").write_text(json.dumps({"status": status}))


@pytest.fixture
def meanwhile(monkeypatch) -> Callable[[Iterable[Callable[[], object]]], list[float]]:
    """Instead of waiting, do the next of some acts. Returns how often there was a wait, and how long it would be."""

    def plan(acts: Iterable[Callable[[], object]]) -> list[float]:
        left, waits = iter(acts), []

        def sleep(duration_s: float) -> None:
            waits.append(duration_s)
            next(left)()

        monkeypatch.setattr(search.time, "sleep", sleep)
        return waits

    return plan


def test_of_a_run_all_checkpoints_are_found_the_oldest_first(run, tmp_path):
    later, earlier = write(run, 200), write(run, 100)
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "config.json").touch()
    assert find([str(run), str(exported)]) == [run, exported]
    assert find([str(run), str(exported), str(later)], every=True) == [earlier, later, exported]


def test_a_run_is_followed_until_it_is_finished(run, meanwhile):
    steps = [write(run, 100)]
    waits = meanwhile(
        [
            lambda: None,
            lambda: steps.append(write(run, 200)),
            lambda: (steps.append(write(run, 300)), end(run, "finished")),
        ]
    )
    assert list(follow([str(run)])) == steps and len(steps) == 3
    assert len(waits) == 3 and min(waits) > 0


def test_what_a_run_removes_before_it_is_asked_for_is_never_seen(run, meanwhile):
    first = write(run, 100)
    meanwhile([])
    following = follow([str(run)])
    assert next(following) == first
    gone, last = write(run, 200), write(run, 300)
    first.rmdir()
    gone.rmdir()
    end(run, "failed")
    assert list(following) == [last]


def test_an_interrupted_run_is_waited_for_and_a_run_that_begins_later_is_followed_too(run, tmp_path, meanwhile, capsys):
    end(run, "interrupted")
    (tmp_path / "runs" / "notes").mkdir()
    steps = []
    meanwhile(
        [
            lambda: steps.append(write(begin(tmp_path / "runs" / "two"), 100)),
            lambda: (end(run, "finished"), end(tmp_path / "runs" / "two", "finished")),
        ]
    )
    assert list(follow([f"{tmp_path}/runs/*"])) == steps
    warning, waiting = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: passing over") and waiting.startswith("waiting for the next checkpoint")


@pytest.mark.parametrize("pattern", ["nowhere", ".", "runs/one/checkpoints/step-00000100", "none*"])
def test_what_is_no_run_cannot_be_followed(pattern, run, monkeypatch):
    write(run, 100)
    monkeypatch.chdir(run.parents[1])
    with pytest.raises(ConfigError, match=r"^ckpt="):
        next(follow([pattern]))
