"""Tokens and time to a loss, against planted curves whose overhead is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
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
from table_text import MISSING

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
    assert found.is_lower_bound == found.ends_worse == (overhead > 1.0)
    assert not found.is_upper_bound
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
    assert found.is_upper_bound and not found.is_lower_bound


def losses(*values: float) -> pd.Series:
    return pd.Series(values, index=1024.0 * np.arange(1, len(values) + 1))


def test_an_overhead_from_before_the_first_validation_is_a_bound() -> None:
    found = token_overhead(curve(), curve(20.0))
    assert found.is_lower_bound
    assert found.tokens == pytest.approx(400 / 50)
    found = token_overhead(losses(5.0, 4.0), losses(4.0, 4.0))
    assert found.is_upper_bound and not found.is_lower_bound
    assert found.tokens == 0.5


@pytest.mark.parametrize(
    ("sync", "delayed"),
    [
        (losses(5.0, 4.8, 4.7), losses(5.2, 5.3, 5.6)),  # rises
        (losses(5.0, 4.0), losses(3.9, 4.2)),  # was better, and is not at sync's loss
        (losses(5.0, 4.0), losses(3.8, 3.9)),
        (losses(4.0), losses(4.2)),  # one validation is both the first and the last
        (losses(4.0, 4.1), losses(5.0, 3.9)),  # sync rises
    ],
)
def test_where_the_factor_could_be_anything_there_is_none(sync: pd.Series, delayed: pd.Series) -> None:
    assert token_overhead(sync, delayed) is None


def test_a_run_that_was_at_syncs_loss_and_ends_worse_is_not_compared_there() -> None:
    found = token_overhead(losses(5.0, 4.5, 4.0), losses(5.0, 3.9, 4.2))
    assert (found.loss, found.ends_worse, found.reaches_sync) == (4.2, True, True)


def test_tokens_to_reach() -> None:
    falling = pd.Series([5.0, 4.0, 4.5, 3.0], index=[1.0, 2.0, 4.0, 8.0])
    assert tokens_to_reach(falling, 4.5) == pytest.approx(math.sqrt(2.0))  # half-way in the logarithm
    assert tokens_to_reach(falling, 4.0) == 2.0  # the first time, not the last
    assert tokens_to_reach(falling, 6.0) == 1.0
    assert tokens_to_reach(falling, 2.9) == math.inf


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
    read = validation_curve(folder, 400, 1024.0)
    assert read.to_dict() == {204800.0: 5.0, 409600.0: 4.0}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 401, "val/lo')
    assert len(validation_curve(folder, 400, 1024.0)) == 2
    assert validation_curve(folder, 800, 1024.0) is None  # cut short


@pytest.mark.parametrize("text", ["", '{"val/loss": 4.0}\n', "val/loss\n", '{"step": 1, "val/loss": NaN}\n'])
def test_a_curve_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    assert validation_curve(tmp_path, 1, 1.0) is None
    assert validation_curve(tmp_path / "nowhere", 1, 1.0) is None


def plant_pairs(plant: PlantRun, *pairs: tuple[pd.Series, pd.Series]) -> Path:
    """A synchronous and a delayed run for each seed, with these validation curves."""
    for seed, pair in enumerate(pairs):
        for delay, own in zip(("sync", "one_step"), pair, strict=True):
            steps = 400 * own.index / own.index[-1]
            rows = [{"step": int(step), "val/loss": loss} for step, loss in zip(steps, own, strict=True)]
            path = plant(delay=delay, seed=seed, val_loss=own.iloc[-1], metrics=rows)
    return path.parent


def plant_curves(plant: PlantRun, *overheads: float) -> Path:
    return plant_pairs(plant, *((curve(), curve(overhead)) for overhead in overheads))


def row_of(runs_dir: Path) -> time_to_loss.Row:
    (row,) = time_to_loss.compare_times([load_runs(runs_dir).frame], num_stages=4, num_micro_batches=4).rows
    return row


def test_a_planted_time_to_loss(plant: PlantRun) -> None:
    row = row_of(plant_curves(plant, 1.19, 1.20, 1.21))
    assert row.tokens.mean == pytest.approx(1.20, rel=0.01)
    assert row.tokens.spread == pytest.approx(0.01, rel=0.2)
    assert row.times == pytest.approx((1.20 * 4 / 7, 1.20 * 16 / 19), rel=0.01)
    assert (row.bound, row.num_reaching_sync) == ("lower", 0)
    markdown = time_to_loss.to_markdown([row], 4, 4)
    assert "| time, m=4 |  m=16 | to sync's loss |  async is |" in markdown
    assert "| async     |  3 | >1.20 ±0.01 * |     >0.68 | >1.01 |         > 1.00 | not known |" in markdown
    assert max(len(line) for line in markdown.splitlines()) <= 110
    text = " ".join(markdown.split())
    assert '"*": the p-value of its being 1 is below 0.05' in text
    assert "is not known to us" in text and "gives" not in text
    assert json.dumps(row.record(), allow_nan=False)
    assert r"\toprule" in time_to_loss.to_latex([row], 4, 4)


@pytest.mark.parametrize(
    ("overheads", "cell", "verdict"),
    [
        ((3.0, 3.1, 3.0), "$>$3.01", "slower"),
        ((1.2, 2.5, 1.7), "$>$1.80", "not known"),
        ((1.1,), "$>$1.10", "not known"),
        ((20.0, 20.0, 20.0), "$>$8.00", "slower"),
        ((1.1, 1.1, 1.1), "$>$1.10", "not known"),  # a lower bound is no faster, however low
        ((0.8, 0.8, 0.8), "$<$0.80", "faster"),
        ((1.0, 1.0, 1.0), "1.00", "faster"),
        ((0.9, 1.1), r"$\approx$1.00", "not known"),
    ],
)
def test_verdicts_on_time(plant: PlantRun, overheads: tuple[float, ...], cell: str, verdict: str) -> None:
    row = row_of(plant_curves(plant, *overheads))
    assert row.verdict == row.record()["async_is"] == verdict
    assert f"& {cell}" in time_to_loss.to_latex([row], 4, 4)


def test_tokens_are_those_to_syncs_loss_only_where_every_seed_was_compared_there(plant: PlantRun) -> None:
    better = losses(5.0, 4.5, 4.0), losses(5.0, 4.4, 3.9)
    was_better = losses(5.0, 4.5, 4.0), losses(5.0, 3.9, 4.2)
    row = row_of(plant_pairs(plant, better, was_better))
    assert "& 2 of 2 seeds &" in time_to_loss.to_latex([row], 4, 4)
    assert "& = tokens &" in time_to_loss.to_latex([replace(row, overheads=row.overheads[:1])], 4, 4)


def test_a_row_with_a_seed_that_has_no_factor_has_none(plant: PlantRun) -> None:
    row = row_of(plant_pairs(plant, (curve(), curve(1.1)), (losses(5.0, 4.8, 4.7), losses(5.2, 5.3, 5.6))))
    assert row.tokens is None and row.record()["tokens_factor"] is None
    markdown = time_to_loss.to_markdown([row], 4, 4)
    (line,) = [line for line in markdown.splitlines() if "AdamW" in line]
    assert [cell.strip() for cell in line.split("|")[4:-1]] == ["2", *[MISSING] * 4, "not known"]
    assert "ends above its first validation" in markdown
    assert json.dumps(row.record(), allow_nan=False)


def test_a_run_without_a_finite_curve_is_listed(plant: PlantRun) -> None:
    runs_dir = plant_curves(plant, 1.2, 1.3)
    bad = next(folder for folder in runs_dir.iterdir() if "one_step-none-seed1" in folder.name)
    metrics = bad / "metrics.jsonl"
    metrics.write_text('{"step": 1, "val/loss": NaN}\n' + metrics.read_text())
    times = time_to_loss.compare_times([load_runs(runs_dir).frame], 4, 4)
    assert [entry.folder for entry in times.passed_over] == [bad]
    assert len(times.rows[0].overheads) == 1
