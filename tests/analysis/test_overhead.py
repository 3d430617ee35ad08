"""Tokens and time to a loss, against planted curves whose overhead is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import load_runs
from planted import PlantRun

import time_to_loss
from asyncpp.errors import ConfigError
from overhead import step_time_ratio, token_overhead, tokens_to_reach, validation_curve

STEPS = np.arange(50, 401, 50)


def curve(overhead: float = 1.0, exponent: float = 0.5, steps: np.ndarray = STEPS) -> pd.Series:
    """Losses by tokens of a power law that takes ``overhead`` times the tokens to each loss."""
    return pd.Series(3.0 + 20.0 * (steps / overhead) ** -exponent, index=steps * 1024.0)


@settings(max_examples=50, deadline=None)
@given(st.just(1.0) | st.floats(1.01, 6.0), st.floats(0.2, 1.0))
def test_a_planted_overhead_is_found(overhead: float, exponent: float) -> None:
    often = np.arange(10, 401, 10)
    found = token_overhead(curve(1.0, exponent, often), curve(overhead, exponent, often))
    assert found.tokens == pytest.approx(overhead, rel=0.01)
    assert not found.is_bound
    assert found.reaches_sync == (overhead == 1.0)


@settings(max_examples=50, deadline=None)
@given(st.floats(1.0, 3.0), st.floats(0.2, 1.0))
def test_eight_validations_find_it_within_three_percent(overhead: float, exponent: float) -> None:
    assert token_overhead(curve(1.0, exponent), curve(overhead, exponent)).tokens == pytest.approx(overhead, rel=0.03)


def test_a_delayed_run_that_is_better_has_an_overhead_below_one() -> None:
    found = token_overhead(curve(), curve(0.8))
    assert found.tokens == pytest.approx(0.8, rel=0.02)
    assert found.reaches_sync
    assert found.loss == pytest.approx(curve().iloc[-1])


def test_an_overhead_from_before_the_first_validation_is_a_bound() -> None:
    found = token_overhead(curve(), curve(20.0))
    assert found.is_bound
    assert found.tokens == pytest.approx(400 / 50)


def test_tokens_to_reach() -> None:
    losses = pd.Series([5.0, 4.0, 4.5, 3.0], index=[1.0, 2.0, 4.0, 8.0])
    assert tokens_to_reach(losses, 4.5) == pytest.approx(math.sqrt(2.0))  # half-way in the logarithm
    assert tokens_to_reach(losses, 4.0) == 2.0  # the first time, not the last
    assert tokens_to_reach(losses, 6.0) == 1.0
    assert tokens_to_reach(losses, 2.9) == math.inf


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), [(1, 1), (2, 2), (4, 4), (4, 8), (8, 16)])
def test_the_schedules_ratio_is_the_papers_model(num_stages: int, num_micro_batches: int) -> None:
    expected = num_micro_batches / (num_micro_batches + num_stages - 1)
    assert step_time_ratio(num_stages, num_micro_batches) == pytest.approx(expected)


def test_a_shape_that_2bw_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_micro_batches=2: expected at least num_stages=4"):
        step_time_ratio(4, 2)


def test_a_validation_curve_is_read_by_tokens(plant: PlantRun) -> None:
    rows = [{"step": 0, "train/loss": 9.0}, {"step": 200, "val/loss": 5.0}, {"step": 400, "val/loss": 4.0}]
    folder = plant(metrics=rows)
    read = validation_curve(folder, 1024.0)
    assert read.to_dict() == {204800.0: 5.0, 409600.0: 4.0}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 401, "val/lo')
    assert len(validation_curve(folder, 1024.0)) == 2


@pytest.mark.parametrize("text", ["", '{"val/loss": 4.0}\n', "val/loss\n", '{"step": 1, "val/loss": NaN}\n'])
def test_a_curve_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    assert validation_curve(tmp_path, 1.0) is None
    assert validation_curve(tmp_path / "nowhere", 1.0) is None


def plant_curves(plant: PlantRun, overheads: dict[int, float], delay: str = "one_step") -> Path:
    """A synchronous and a delayed run for each seed, with validation curves."""
    for seed, overhead in overheads.items():
        for name, own in (("sync", curve()), (delay, curve(overhead))):
            rows = [{"step": int(tokens / 1024), "val/loss": loss} for tokens, loss in own.items()]
            path = plant(delay=name, seed=seed, val_loss=own.iloc[-1], metrics=rows)
    return path.parent


def test_a_planted_time_to_loss(plant: PlantRun) -> None:
    runs_dir = plant_curves(plant, {0: 1.19, 1: 1.20, 2: 1.21})
    (row,) = time_to_loss.compare_times([load_runs(runs_dir).frame], num_stages=4, num_micro_batches=4).rows
    assert row.tokens.mean == pytest.approx(1.20, rel=0.01)
    assert row.tokens.spread == pytest.approx(0.01, rel=0.2)
    assert row.time == pytest.approx(1.20 * 4 / 7, rel=0.01)
    assert (row.verdict, row.num_reaching_sync) == ("faster", 0)
    markdown = time_to_loss.to_markdown([row], 4, 4)
    assert "| tiny  | AdamW     | async     |  3 | 1.20 ±0.01 * | 0.68 |         > 1.00 |   faster |" in markdown
    assert json.dumps(row.record(), allow_nan=False)
    assert r"\toprule" in time_to_loss.to_latex([row], 4, 4)


@pytest.mark.parametrize(
    ("overheads", "verdict"),
    [
        ({0: 3.0, 1: 3.1, 2: 3.0}, "slower"),
        ({0: 1.2, 1: 2.5, 2: 1.7}, "not known"),
        ({0: 1.1}, "not known (one seed)"),
        ({0: 20.0, 1: 20.0, 2: 20.0}, "slower"),
    ],
)
def test_verdicts_on_time(plant: PlantRun, overheads: dict[int, float], verdict: str) -> None:
    (row,) = time_to_loss.compare_times([load_runs(plant_curves(plant, overheads)).frame], 4, 4).rows
    assert row.verdict == verdict
    assert row.is_bound == (overheads[0] > 8.0)
    assert (r"& $>$8.00" in time_to_loss.to_latex([row], 4, 4)) == row.is_bound


def test_a_run_without_a_finite_curve_is_listed(plant: PlantRun) -> None:
    runs_dir = plant_curves(plant, {0: 1.2, 1: 1.3})
    bad = next(folder for folder in runs_dir.iterdir() if "one_step-none-seed1" in folder.name)
    with (bad / "metrics.jsonl").open("a") as file:
        file.write('{"step": 400, "val/loss": NaN}\n')
    times = time_to_loss.compare_times([load_runs(runs_dir).frame], 4, 4)
    assert [entry.folder for entry in times.passed_over] == [bad]
    assert times.rows[0].tokens.num_seeds == 1
