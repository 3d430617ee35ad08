"""Reduced copies of runs: what they keep, that nothing changes by them, and that no path of a machine stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from loading import load_runs
from planted import DELAY_AND_CORRECTION, PLANTED, PlantRun, loss_rows

import claims
import collect as command
import lr_search
import make_tables
from asyncpp.arguments import run_command

WORDS = (
    "no finite gradient in 10 steps in a row, the last at step 37 (trainer.max_skipped_steps=10); "
    "try a smaller optimizer.lr"
)
DIVERGED = {"status": "failed", "val_loss": None, "error": WORDS}
KILLED = DIVERGED | {"error": "rank 1 died: it was killed"}


def run(*arguments: str) -> int:
    return run_command(command.__doc__, arguments, command.CollectOptions, command.main)


def plant_runs(plant: PlantRun) -> Path:
    for seed in range(2):
        for delay, loss in (("sync", 4.4), ("one_step", 4.8)):
            rows = list(loss_rows(loss + 0.01 * seed, eval_every=50))
            runs_dir = plant(
                sweep="table1_optimizers",
                delay=delay,
                seed=seed,
                val_loss=loss + 0.01 * seed,
                metrics=rows,
                config={"data.root": "/a/machine/data", "runs_dir": "/a/machine/runs"},
            ).parent
    return runs_dir


def plant_failures(plant: PlantRun) -> Path:
    """Optimizers of which some delayed runs diverged, one run was killed, and a search with rates that diverged."""
    for optimizer in ("adamw", "muon"):
        for seed in range(5):
            for condition, (delay, correction) in DELAY_AND_CORRECTION.items():
                loss = PLANTED[optimizer][condition] + 0.05 * seed + (0.001 * (seed % 2) if delay == "sync" else 0.0)
                ending = DIVERGED if (optimizer, condition) == ("muon", "async") and seed > 2 else {}
                ending = KILLED if (optimizer, condition, seed) == ("adamw", "async_ef", 4) else ending
                kind = {"optimizer": optimizer, "delay": delay, "correction": correction, "seed": seed}
                rows = list(loss_rows(loss, eval_every=50))
                plant(**kind, val_loss=loss, metrics=rows, summary=ending, sweep="table2_error_feedback")
    for lr, loss, endings in ((1e-3, 5.0, ({}, {})), (3e-3, 4.5, ({}, DIVERGED)), (1e-2, 4.6, (KILLED, {}))):
        for seed, ending in enumerate(endings):
            kind = {"optimizer": "muon", "seed": seed, "config": {"optimizer.lr": lr}, "folder": f"rates/{lr}-{seed}"}
            folder = plant(**kind, val_loss=loss, summary=ending, sweep="appendix_a_learning_rate")
    return folder.parents[1]


def made_of(runs_dir: Path, out: Path) -> dict[str, str]:
    """Tables, claims and the search for learning rates, by file."""
    for script, options, target in (
        (make_tables, make_tables.TablesOptions, out),
        (claims, claims.ClaimsOptions, out),
        (lr_search, lr_search.SearchOptions, out / "search.md"),
    ):
        assert run_command("", [f"runs={runs_dir}", f"out={target}"], options, script.main) == 0
    return {file.name: file.read_text() for file in out.iterdir()}


def contents(folder: Path) -> dict[Path, bytes]:
    """Of every file below ``folder``."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_tables_of_the_copy_are_those_of_the_runs(plant: PlantRun, tmp_path: Path) -> None:
    runs_dir, copy = plant_runs(plant), tmp_path / "copy"
    assert run(f"runs={runs_dir}", f"out={copy}") == 0
    for source, out in ((runs_dir, "a"), (copy, "b")):
        arguments = [f"runs={source}", f"out={tmp_path / out}"]
        assert run_command("", arguments, make_tables.TablesOptions, make_tables.main) == 0
    names = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert "time_to_loss.csv" in names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_tables_claims_and_rates_of_the_copy_are_those_of_the_runs_where_some_failed(
    plant: PlantRun, tmp_path: Path
) -> None:
    runs_dir, copy = plant_failures(plant), tmp_path / "copy"
    of_runs = made_of(runs_dir, tmp_path / "out")
    assert run(f"runs={runs_dir}", f"out={copy}") == 0
    runs_dir.rename(tmp_path / "originals")
    copy.rename(runs_dir)  # what is made says of which folder
    assert made_of(runs_dir, tmp_path / "out") == of_runs
    assert "2 of 5 async runs diverged" in of_runs["claims.md"]
    assert "| muon | **0.001: 5.000** · 0.003: failed · 0.01: failed (edge) |" in of_runs["search.md"]


def test_failed_runs_are_told_and_say_no_more_where_files_lay(plant: PlantRun, tmp_path: Path, capsys) -> None:
    plant(folder="good")
    words = "[Errno 28] No space left on device: '/a/machine/runs/step-400.pt'; /a is full at val/loss, 1 / 2"
    kept = "[Errno 28] No space left on device: 'step-400.pt'; a is full at val/loss, 1 / 2"
    full = plant(folder="full", summary=DIVERGED | {"error": words})
    copy = tmp_path / "copy"
    assert run(f"runs={full.parent}", f"out={copy}") == 0
    told = capsys.readouterr()
    assert told.out.startswith("2 runs, 1 of them failed, ")
    assert told.err == ""
    summary, copied = (json.loads((folder / "summary.json").read_text()) for folder in (full, copy / "full"))
    assert copied == summary | {"error": kept}


def test_losses_stay_to_the_last_digit_and_the_rest_goes(plant: PlantRun, tmp_path: Path) -> None:
    rows = [
        {"step": 0, "train/loss": 1 / 3, "optim/lr": 1e-3, "time/step_s": 0.1, "pipeline/staleness_updates": 0},
        {"step": 1, "optim/skipped": 1},
        {"step": 1, "val/loss": 2 / 3},
        {"step": 1, "probe/cosine": 0.5},
    ]
    folder = plant(metrics=rows)
    command.reduce(folder, tmp_path / "copy")
    kept = [json.loads(line) for line in (tmp_path / "copy" / "metrics.jsonl").read_text().splitlines()]
    assert kept == [{"step": 0, "train/loss": 1 / 3}, {"step": 1, "val/loss": 2 / 3}, {"step": 1, "probe/cosine": 0.5}]


def test_nothing_says_where_files_lay(plant: PlantRun, tmp_path: Path) -> None:
    runs_dir, copy = plant_runs(plant), tmp_path / "copy"
    environment = {"command": ["/a/machine/asyncpp/train.py", "runs_dir=/a/machine/runs"], "commit": "0123abc"}
    for folder in runs_dir.iterdir():
        (folder / "environment.json").write_text(json.dumps(environment))
    run(f"runs={runs_dir}", f"out={copy}")
    files = [file for file in copy.rglob("*") if file.is_file()]
    assert len(files) == 4 * 4
    assert not any("/a/machine" in file.read_text() for file in files)
    assert json.loads((next(copy.iterdir()) / "environment.json").read_text()) == {"commit": "0123abc"}


def test_scores_are_kept_and_checkpoints_are_not(plant: PlantRun, tmp_path: Path) -> None:
    folder = plant()
    for name in ("eval/step-400-x.json", "checkpoints/step-400/manifest.json", "output.log"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    copy = command.reduce(folder, tmp_path / "copy")
    names = sorted(str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file())
    assert names == ["config.yaml", "eval/step-400-x.json", "metrics.jsonl", "summary.json"]


def test_bad_scores_cost_a_copied_run_nothing_else(plant: PlantRun, tmp_path: Path) -> None:
    folder = plant(metrics=list(loss_rows(4.0)))
    (folder / "eval" / "step-200-x.json").mkdir(parents=True)
    (folder / "eval" / "step-400-x.json").write_bytes(b"\xff[")
    copy = command.reduce(folder, tmp_path / "copy")
    assert [file.name for file in (copy / "eval").iterdir()] == ["step-400-x.json"]
    assert (copy / "eval" / "step-400-x.json").read_bytes() == b"\xff["


def test_unusable_runs_are_listed_and_not_copied(plant: PlantRun, tmp_path: Path, capsys) -> None:
    plant(folder="good")
    bad = plant(folder="bad")
    (bad / "summary.json").unlink()
    runs_dir = bad.parent
    assert run(f"runs={runs_dir}", f"out={tmp_path / 'copy'}", "json=true") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["num_runs"], document["num_failed"]) == (1, 0)
    assert [Path(entry["folder"]).name for entry in document["passed_over"]] == ["bad"]
    assert [folder.name for folder in (tmp_path / "copy").iterdir()] == ["good"]
    assert len(load_runs(tmp_path / "copy").frame) == 1


def test_a_copy_into_the_runs_themselves_is_refused(plant: PlantRun, capsys: pytest.CaptureFixture[str]) -> None:
    runs_dir = plant().parent
    assert run(f"runs={runs_dir}", f"out={runs_dir / 'small'}") == 2
    assert "expected a folder outside runs=" in capsys.readouterr().err


@pytest.mark.parametrize("link", ["sweep/run", "sweep", "sweep/run/inner"])
def test_a_copy_of_links_to_where_the_runs_lie_is_refused(
    plant: PlantRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], link: str
) -> None:
    """The copy's folder is the run's own, holds it, or lies within it."""
    folder = plant(folder="sweep/run", metrics=list(loss_rows(4.0)))
    originals, before = folder.parents[1], contents(folder)
    (tmp_path / "links" / link).parent.mkdir(parents=True)
    (tmp_path / "links" / link).symlink_to(folder)
    assert run(f"runs={tmp_path / 'links'}", f"out={originals}") == 2
    error = capsys.readouterr().err
    assert f"out={originals}: expected a folder apart from the runs; the copy of" in error
    assert error.count("\n") == 1
    assert contents(originals) == before


@pytest.mark.parametrize("link", ["sweep", "sweep/run", "sweep/run/eval"])
def test_a_copy_behind_links_to_the_runs_is_refused(plant: PlantRun, tmp_path: Path, link: str) -> None:
    other = plant(folder="a", seed=1)
    folder = plant(folder="sweep/run", metrics=list(loss_rows(4.0)))
    (folder / "eval").mkdir()
    (folder / "eval" / "step-400-x.json").write_text("{}")
    copy, before = tmp_path / "copy", contents(folder)
    (copy / link).parent.mkdir(parents=True)
    (copy / link).symlink_to(other.parent / link)
    assert run(f"runs={other.parent}", f"out={copy}") == 2
    assert contents(folder) == before
    assert not (copy / "a").exists()


def test_a_copy_goes_over_no_run_that_is_passed_over(plant: PlantRun, tmp_path: Path) -> None:
    """A run that is being made yet is not copied, but may lie where the copy of another one would."""
    folder = plant(folder="made/run", metrics=list(loss_rows(4.0)))
    unfinished = plant(folder="run", seed=1, metrics=list(loss_rows(4.1)))
    (unfinished / "summary.json").unlink()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "run").symlink_to(folder)
    (tmp_path / "links" / "unfinished").symlink_to(unfinished)
    before = contents(folder.parents[1])
    assert run(f"runs={tmp_path / 'links'}", f"out={folder.parents[1]}") == 2
    assert contents(folder.parents[1]) == before


def test_a_second_call_changes_nothing(plant: PlantRun, tmp_path: Path) -> None:
    runs_dir, copy = plant_runs(plant), tmp_path / "copy"
    run(f"runs={runs_dir}", f"out={copy}")
    first = contents(copy)
    run(f"runs={runs_dir}", f"out={copy}")
    assert contents(copy) == first


def test_metrics_that_cannot_be_read_cost_no_copy_its_own(plant: PlantRun, tmp_path: Path, capsys) -> None:
    folder = plant(metrics=list(loss_rows(4.0)))
    out = tmp_path / "copy"
    assert run(f"runs={folder.parent}", f"out={out}") == 0
    kept = (out / folder.name / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text('{"step": 0, "train\n{"step": 1}\n')
    capsys.readouterr()
    assert run(f"runs={folder.parent}", f"out={out}", "json=true") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["num_runs"], len(document["passed_over"])) == (0, 1)
    assert (out / folder.name / "metrics.jsonl").read_text() == kept


def test_a_run_that_goes_meanwhile_is_listed(plant: PlantRun, tmp_path: Path, monkeypatch, capsys) -> None:
    gone = plant(folder="gone", metrics=list(loss_rows(4.0)))
    kept = plant(folder="kept", seed=1, metrics=list(loss_rows(4.0)))
    read_runs = command.read_runs

    def read_and_remove(runs_dir: Path):
        read = read_runs(runs_dir)
        shutil.rmtree(gone)
        return read

    monkeypatch.setattr(command, "read_runs", read_and_remove)
    assert run(f"runs={kept.parent}", f"out={tmp_path / 'copy'}") == 0
    assert f"{gone}: it cannot be read whole (FileNotFoundError)" in capsys.readouterr().err
    assert [folder.name for folder in (tmp_path / "copy").iterdir()] == ["kept"]
