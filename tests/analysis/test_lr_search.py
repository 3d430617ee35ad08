"""The learning-rate search on planted runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from planted import PlantRun

import lr_search as command
from asyncpp.arguments import run_command
from table_text import MISSING

ROOT = Path(__file__).parents[2]
FAILED = {"status": "failed", "error": "the gradients stay non-finite"}


@pytest.fixture
def rate(plant: PlantRun):
    """Plant a run of the search for every loss, a seed each; None is a failed run, NaN one that says it finished."""

    def plant_rate(optimizer: str, lr: float, *losses: float | None, **values: Any):
        for seed, loss in enumerate(losses):
            summary = (FAILED if loss is None else {}) | values.get("summary", {})
            config = {"optimizer.lr": lr} | values.get("config", {})
            own = {"delay": values.get("delay", "sync"), "summary": summary, "config": config}
            plant(optimizer=optimizer, seed=seed, val_loss=loss, sweep="appendix_a_learning_rate", **own)

    return plant_rate


def lines(tmp_path: Path, **options: str) -> list[str]:
    arguments = [f"runs={tmp_path / 'runs'}", f"out={tmp_path / 'search.md'}"]
    arguments += [f"{key}={value}" for key, value in options.items()]
    assert run_command(command.__doc__, arguments, command.SearchOptions, command.main) == 0
    return (tmp_path / "search.md").read_text().splitlines()


def test_the_lowest_mean_wins_and_an_edge_is_marked(rate, tmp_path: Path, capsys) -> None:
    for lr, loss in ((0.1, 4.0), (0.2, 3.0), (0.4, 5.0)):
        rate("adamw", lr, loss, loss + 0.5)
        rate("adamw", lr, 0.0, delay="one_step")
    rate("lion", 0.1, 2.0)
    rate("lion", 0.2, None)
    text = lines(tmp_path, json="true")
    assert json.loads(capsys.readouterr().out) == {"adamw": 0.2, "lion": 0.1}
    assert text[0] == "# Learning rates at tiny scale"
    assert "| adamw | 0.1: 4.250 · **0.2: 3.250** · 0.4: 5.250 |" in text
    assert "| lion | **0.1: 2.000** · 0.2: failed (edge) |" in text
    assert any("Seeds: 0, 1." in line for line in text)


@pytest.mark.parametrize("lost", [None, float("nan")])
def test_a_rate_wins_with_finite_losses_of_all_its_seeds_only(rate, tmp_path: Path, lost: float | None) -> None:
    rate("adamw", 0.01, 4.1, 4.1, 4.1)
    rate("adamw", 0.1, 4.0, lost, lost)
    assert "| adamw | **0.01: 4.100** · 0.1: failed (edge) |" in lines(tmp_path)


def test_an_optimizer_that_failed_at_every_rate_has_no_winner(rate, tmp_path: Path, capsys) -> None:
    rate("adamw", 0.1, 4.0)
    rate("sgd", 1.0, None)
    rate("sgd", 3.0, None)
    assert "| sgd | 1: failed · 3: failed |" in lines(tmp_path, json="true")
    assert json.loads(capsys.readouterr().out)["sgd"] is None


def test_a_best_rate_that_is_not_the_default_is_named(rate, tmp_path: Path) -> None:
    rate("adamw", 3e-3, 4.0)
    rate("muon", 0.1, 4.0)
    rate("mine", 0.1, 4.0)
    rate("sgd", 1.0, None)
    told = f"the default in `conf/optimizer` but for muon (0.0025), mine ({MISSING}). The same"
    assert any(line.startswith(told) for line in lines(tmp_path))


def test_the_default_of_a_scale_is_its_recipes() -> None:
    assert command.default_lr("adamw", "tiny") == 3e-3
    assert command.default_lr("adamw", "10b") == 7e-4
    assert command.default_lr("mine", "tiny") is None


def test_the_search_that_is_kept_is_of_the_defaults_and_of_the_runs_that_are_kept(tmp_path: Path) -> None:
    arguments = [f"runs={ROOT / 'docs/results-tiny/runs'}", f"out={tmp_path / 'search.md'}"]
    assert run_command(command.__doc__, arguments, command.SearchOptions, command.main) == 0
    assert (tmp_path / "search.md").read_text() == (ROOT / "docs/lr-search-tiny.md").read_text()


def test_a_close_second_makes_the_search_flat(rate, tmp_path: Path) -> None:
    for lr, loss in ((0.1, 4.2), (0.2, 4.0), (0.4, 4.009), (0.8, 4.3)):
        rate("soap", lr, loss)
    assert "| soap | 0.1: 4.200 · **0.2: 4.000** · 0.4: 4.009 · 0.8: 4.300 (flat) |" in lines(tmp_path)


def test_rates_are_compared_over_the_seeds_that_all_of_them_have(rate, plant: PlantRun, tmp_path: Path) -> None:
    rate("adamw", 0.1, 4.0, 6.0)
    rate("adamw", 0.2, 4.5)
    plant(sweep="appendix_a_learning_rate", optimizer="muon", seed=0, config={"optimizer.lr": 0.1})
    plant(sweep="appendix_a_learning_rate", optimizer="muon", seed=1, config={"optimizer.lr": 0.2})
    text = lines(tmp_path)
    assert "| adamw | **0.1: 4.000** · 0.2: 4.500 (edge) |" in text
    assert f"| muon | 0.1: {MISSING} · 0.2: {MISSING} |" in text


def test_scales_copies_and_foreign_folders_are_kept_apart(rate, plant: PlantRun, tmp_path: Path, capsys) -> None:
    rate("adamw", 0.1, 4.0)
    rate("adamw", 0.2, 5.0)
    large = {"summary": {"model": "135m"}, "config": {"model.name": "135m"}}
    rate("adamw", 0.1, 3.0, **large)
    rate("adamw", 0.2, None, **large)
    plant(sweep="appendix_a_learning_rate", folder="z-copy", config={"optimizer.lr": 0.1}, val_loss=4.0)
    foreign = plant(folder="foreign")
    (foreign / "summary.json").write_text('{"status": "finished"}')
    assert "| adamw | **0.1: 4.000** · 0.2: 5.000 (edge) |" in lines(tmp_path)
    listed = capsys.readouterr().err
    assert "foreign: foreign: summary.json has no model" in listed and "duplicate of" in listed
    text = lines(tmp_path, scale="135m")
    assert "| adamw | **0.1: 3.000** · 0.2: failed (edge) |" in text
    assert any("appendix_a_learning_rate scale=135m && python" in line for line in text)


def test_a_failed_run_that_was_made_again_counts_as_finished(rate, plant: PlantRun, tmp_path: Path) -> None:
    rate("adamw", 0.1, 4.0)
    config = {"optimizer.lr": 0.1}
    plant(sweep="appendix_a_learning_rate", folder="earlier", config=config, val_loss=None, summary=FAILED)
    assert "| adamw | **0.1: 4.000** (edge) |" in lines(tmp_path)


def test_no_runs_of_the_search_is_one_line(plant: PlantRun, tmp_path: Path, capsys) -> None:
    runs_dir = plant(sweep="table1_optimizers").parent
    assert run_command(command.__doc__, [f"runs={runs_dir}"], command.SearchOptions, command.main) == 2
    error = capsys.readouterr().err
    assert "expected a finished synchronous run of appendix_a_learning_rate at scale=tiny" in error
    assert error.count("\n") == 1
