"""Losses and gaps against one number, from planted sweeps whose gaps follow a formula."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from loading import only_frame
from planted import plant_run
from planted_sweeps import (
    SEEDS,
    SYNC_LOSS,
    plant_batch_size,
    plant_depth,
    plant_initial_std,
    plant_learning_rate,
    plant_momentum,
    plant_strength,
)

from asyncpp.errors import ConfigError
from load_experiments import load_experiments
from sweep_series import (
    COLUMNS,
    over_batch_size,
    over_depth,
    over_initial_std,
    over_learning_rate,
    over_momentum,
    over_strength,
)


def frame_of(runs_dir: Path, experiment: str) -> pd.DataFrame:
    return only_frame(load_experiments(runs_dir), experiment)


def gaps(rows: pd.DataFrame, optimizer: str, series: str) -> dict[float, float]:
    """Mean gap by x, after a check that every seed gives the same."""
    assert list(rows.columns) == COLUMNS
    own = rows[(rows["optimizer"] == optimizer) & (rows["series"] == series)].groupby("x")["gap"]
    assert (own.count() == len(SEEDS)).all()
    assert own.std().max() == pytest.approx(0.0, abs=1e-9)
    return own.mean().to_dict()


def test_momentum_is_the_first_beta_or_the_momentum(tmp_path: Path) -> None:
    plant_momentum(tmp_path)
    rows = over_momentum(frame_of(tmp_path, "momentum"))
    assert gaps(rows, "adamw", "async") == pytest.approx({0.8: 2.0, 0.9: 1.0, 0.98: 0.2})
    assert gaps(rows, "muon", "async") == pytest.approx({0.8: 1.0, 0.9: 0.5, 0.98: 0.1})
    assert rows.loc[rows["series"] == "sync", "gap"].isna().all()


def test_depth_holds_both_schedules_to_the_synchronous_run(tmp_path: Path) -> None:
    plant_depth(tmp_path)
    rows = over_depth(frame_of(tmp_path, "depth"))
    assert gaps(rows, "muon", "two_bw") == pytest.approx({1: 0.1, 2: 0.1, 4: 0.1, 8: 0.1})
    assert gaps(rows, "muon", "pipedream") == pytest.approx({1: 0.0, 2: 0.1, 4: 0.3, 8: 0.7})
    sync = rows[rows["series"] == "sync"]
    assert sync["x"].isna().all()
    assert sync["val_loss"].mean() == pytest.approx(SYNC_LOSS + 0.01)


def test_each_learning_rate_has_its_own_synchronous_run(tmp_path: Path) -> None:
    plant_learning_rate(tmp_path)
    rows = over_learning_rate(frame_of(tmp_path, "learning_rate"))
    assert gaps(rows, "adamw", "async") == pytest.approx({1e-3: 0.1, 3e-3: 0.3, 6e-3: 0.6})
    assert set(rows["optimizer"]) == {"adamw"}  # SOAP has no late run


def test_a_search_of_synchronous_runs_alone_is_kept_whole(tmp_path: Path) -> None:
    plant_learning_rate(tmp_path)
    frame = frame_of(tmp_path, "learning_rate")
    rows = over_learning_rate(frame[frame["condition"] == "sync"])
    assert set(rows["optimizer"]) == {"adamw", "soap"}


def test_every_initial_standard_deviation_has_its_own_synchronous_run(tmp_path: Path) -> None:
    plant_initial_std(tmp_path)
    rows = over_initial_std(frame_of(tmp_path, "initial_std"))
    assert gaps(rows, "adamw", "async") == pytest.approx({0.02: 0.5, 0.05: 0.2, 0.1: 0.1})


def test_batches_are_counted_in_tokens(tmp_path: Path) -> None:
    plant_batch_size(tmp_path)
    rows = over_batch_size(frame_of(tmp_path, "batch_size"))
    assert gaps(rows, "adamw", "async") == pytest.approx({256: 0.04, 1024: 0.16, 4096: 0.64})


def test_strength_zero_is_the_plain_delay_and_z_is_a_reading_of_its_own(tmp_path: Path) -> None:
    plant_strength(tmp_path)
    rows = over_strength(frame_of(tmp_path, "strength"))
    assert gaps(rows, "muon", "x") == pytest.approx({0.0: 0.4, 0.5: 0.25, 1.0: 0.1})
    assert gaps(rows, "muon", "z") == pytest.approx({0.5: 0.2, 1.0: 0.05})


def test_a_seed_without_a_synchronous_run_has_a_loss_but_no_gap(tmp_path: Path) -> None:
    plant_momentum(tmp_path)
    frame = frame_of(tmp_path, "momentum")
    rows = over_momentum(frame[(frame["condition"] != "sync") | (frame["seed"] == 0)])
    late = rows[rows["series"] == "async"]
    assert late.groupby("seed")["gap"].count().to_dict() == {0: 6, 1: 0}
    assert late["val_loss"].notna().all()


def test_two_baselines_with_other_losses_are_refused(tmp_path: Path) -> None:
    plant_strength(tmp_path)
    folder = tmp_path / "strength"
    for strength, loss in ((0.5, SYNC_LOSS), (1.0, 9.0)):
        plant_run(
            folder, "muon", "sync", "ef", val_loss=loss, sweep="strength", config={"correction.strength": strength}
        )
    with pytest.raises(ConfigError, match="expected one synchronous loss for each optimizer, seed"):
        over_strength(frame_of(tmp_path, "strength"))
