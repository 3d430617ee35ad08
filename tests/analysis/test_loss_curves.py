"""Smoothing, the choice of a curve, and the layout of their figure."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout import check_layout
from loading import load_runs
from planted import PlantRun, loss_rows

from asyncpp.errors import ConfigError
from curves import LossCurves, loss_curves, smooth
from figures.loss_curves import draw_loss_curves
from labels import CONDITIONS, OPTIMIZERS


def test_a_constant_stays_constant_to_its_last_step() -> None:
    smoothed = smooth(pd.Series([3.0] * 400), 20)
    assert (smoothed == 3.0).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1.0, 10.0), min_size=1, max_size=60), st.integers(1, 80))
def test_smoothing_stays_within_its_losses(losses: list[float], num_steps: int) -> None:
    smoothed = smooth(pd.Series(losses), num_steps)
    assert len(smoothed) == len(losses)
    assert smoothed.between(min(losses) - 1e-9, max(losses) + 1e-9).all()
    if num_steps == 1:
        assert smoothed.to_numpy() == pytest.approx(losses)


def test_smoothing_is_the_mean_of_what_is_around() -> None:
    assert list(smooth(pd.Series([0.0, 3.0, 6.0, 0.0]), 3)) == [1.5, 3.0, 3.0, 3.0]


def test_few_validations_give_smoothed_training_losses(plant: PlantRun) -> None:
    rows = [{"step": step, "train/loss": 3.0} for step in range(400)] + [{"step": 400, "val/loss": 9.0}]
    curves = loss_curves(load_runs(plant(val_loss=9.0, metrics=rows).parent).frame)
    assert curves.quantity == "training loss, mean of 20 steps"
    assert list(curves.frame["step"]) == list(range(400))
    assert (curves.frame["loss"] == 3.0).all()


def test_many_validations_are_drawn_as_they_are(plant: PlantRun) -> None:
    plant(metrics=list(loss_rows(4.0, eval_every=50)))
    runs_dir = plant(delay="one_step", val_loss=5.0, metrics=list(loss_rows(5.0, eval_every=50))).parent
    curves = loss_curves(load_runs(runs_dir).frame)
    assert curves.quantity == "validation loss"
    assert list(curves.frame["step"]) == 2 * list(range(50, 401, 50))
    last = curves.frame[curves.frame["step"] == 400].set_index("condition")["loss"]
    assert last["sync"] == pytest.approx(4.0, abs=1e-6)
    assert last["async"] == pytest.approx(5.0, abs=1e-6)


def test_runs_without_readable_losses_are_passed_over(plant: PlantRun) -> None:
    plant(metrics=list(loss_rows(4.0)))
    none = plant(seed=1, folder="none")
    empty = plant(seed=2, folder="empty", metrics=[{"step": 0, "optim/lr": 1e-3}])
    torn = plant(seed=3, folder="torn", metrics=[])
    (torn / "metrics.jsonl").write_text('{"step": 0, "train/\n{"step": 1}\n')
    stepless = plant(seed=4, folder="stepless", metrics=[{"train/loss": 4.0}])
    listed = plant(seed=5, folder="listed", metrics=[{"step": 0, "train/loss": 4.0}, [1]])
    curves = loss_curves(load_runs(none.parent).frame)
    assert set(curves.frame["seed"]) == {0}
    assert {entry.folder: entry.reason for entry in curves.passed_over} == {
        none: "metrics.jsonl has no losses",
        empty: "metrics.jsonl has no losses",
        torn: "metrics.jsonl cannot be read",
        stepless: "metrics.jsonl cannot be read",
        listed: "metrics.jsonl cannot be read",
    }


def test_no_losses_at_all_are_refused(plant: PlantRun) -> None:
    frame = load_runs(plant().parent).frame
    with pytest.raises(ConfigError, match=r"with a metrics\.jsonl"):
        loss_curves(frame)


def curves_of(num_optimizers: int, num_seeds: int = 2) -> LossCurves:
    points = [
        {"optimizer": optimizer, "condition": condition, "seed": seed, "step": step, "loss": level + 400 / (step + 50)}
        for optimizer in list(OPTIMIZERS)[:num_optimizers]
        for level, condition in enumerate(CONDITIONS)
        for seed in range(num_seeds)
        for step in range(0, 401, 50)
    ]
    return LossCurves(pd.DataFrame(points), "validation loss", [])


@pytest.mark.parametrize("num_optimizers", [1, 2, 4, 5, 9])
def test_a_panel_an_optimizer_and_a_line_a_condition(num_optimizers: int) -> None:
    figure = draw_loss_curves(curves_of(num_optimizers))
    assert [panel.get_title() for panel in figure.axes] == list(OPTIMIZERS.values())[:num_optimizers]
    for panel in figure.axes:
        assert [line.get_label() for line in panel.get_lines()] == list(CONDITIONS.values())
        looks = {(line.get_color(), line.get_linestyle()) for line in panel.get_lines()}
        assert len(looks) == 3
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(CONDITIONS.values())
    assert figure.get_supxlabel() == "step (updates); bands: ±1 standard deviation over seeds"
    assert draw_loss_curves(curves_of(num_optimizers, num_seeds=1)).get_supxlabel() == "step (updates)"
    assert "nats per token" in figure.get_supylabel()
    assert figure.get_size_inches()[0] <= 6.9


def test_nothing_of_the_figure_overlaps_or_is_cut_off() -> None:
    """Titles, labels, legend and panels have their own places, in every layout."""
    for num_optimizers in (1, 2, 3, 5, 7, 9):
        check_layout(draw_loss_curves(curves_of(num_optimizers)))


def test_a_missing_condition_keeps_the_others_looks() -> None:
    full, part = curves_of(1), curves_of(1)
    part = LossCurves(part.frame[part.frame["condition"] != "async"], part.quantity, [])
    looks = [
        {line.get_label(): line.get_color() for line in draw_loss_curves(curves).axes[0].get_lines()}
        for curves in (full, part)
    ]
    assert looks[1] == {title: color for title, color in looks[0].items() if title != "async"}


def test_the_band_is_one_standard_deviation_of_the_seeds() -> None:
    frame = pd.DataFrame(
        [
            {"optimizer": "adamw", "condition": "sync", "seed": seed, "step": step, "loss": 4.0 + seed}
            for seed in (-1, 0, 1)
            for step in (0, 100)
        ]
    )
    (panel,) = draw_loss_curves(LossCurves(frame, "validation loss", [])).axes
    assert list(panel.get_lines()[0].get_ydata()) == [4.0, 4.0]
    heights = np.unique(panel.collections[0].get_paths()[0].vertices[:, 1])
    assert heights == pytest.approx([3.0, 5.0])


def test_one_seed_a_line_has_no_band() -> None:
    curves = curves_of(1, num_seeds=1)
    others = curves.frame.assign(optimizer="muon", seed=1)
    figure = draw_loss_curves(LossCurves(pd.concat([curves.frame, others]), curves.quantity, []))
    assert not any(panel.collections for panel in figure.axes)
    assert figure.get_supxlabel() == "step (updates)"


def test_the_warm_up_does_not_stretch_the_range() -> None:
    frame = pd.DataFrame({"step": range(100), "loss": [50.0] * 10 + [4.0] * 45 + [3.0] * 45})
    frame = frame.assign(optimizer="adamw", condition="sync", seed=0)
    low, high = draw_loss_curves(LossCurves(frame, "training loss", [])).axes[0].get_ylim()
    assert low < 3.0
    assert 4.0 < high < 4.5


def test_losses_that_are_not_finite_leave_a_gap(plant: PlantRun) -> None:
    rows = [{"step": step, "train/loss": math.nan if step == 5 else 4.0} for step in range(400)]
    curves = loss_curves(load_runs(plant(val_loss=9.0, metrics=rows).parent).frame)
    draw_loss_curves(curves)
    assert curves.frame["loss"].dropna().eq(4.0).all()
