"""Losses over steps, read from the runs' metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from asyncpp.errors import require
from asyncpp.records import METRICS_FILE
from labels import CONDITIONS
from metrics import series
from runs import PassedOver, UnusableRun

# Validation is the better curve where it was measured often enough to draw one.
MIN_VALIDATIONS = 8
SMOOTHED_FRACTION = 0.05  # of the steps: what one point of a training curve averages


@dataclass(frozen=True)
class LossCurves:
    """frame: ``optimizer condition seed step loss``, a row a point; step counts the updates done, loss is in nats per
    token. quantity: what the losses are. passed_over: runs that have no curve, and why."""

    frame: pd.DataFrame
    quantity: str
    passed_over: list[PassedOver]


def smooth(losses: pd.Series, num_steps: int) -> pd.Series:
    """Each loss replaced by the mean of the ``num_steps`` around it; near the ends, of those that there are.

    Nothing is padded, so that a constant stays what it is to its last step.
    """
    return losses.rolling(num_steps, min_periods=1, center=True).mean()


def loss_curves(frame: pd.DataFrame) -> LossCurves:
    """The curves of those runs of a frame of comparable_runs that Tables 1 and 2 compare.

    Validation losses where every run has MIN_VALIDATIONS of them, else smoothed training losses.
    Raises ConfigError where no run has losses.
    """
    compared = frame[frame["condition"].isin(list(CONDITIONS))]
    losses, passed_over = {}, []
    for index, folder, num_steps in compared[["folder", "num_steps"]].itertuples():
        try:
            losses[index] = _losses(folder, num_steps)
        except UnusableRun as reason:
            passed_over.append(PassedOver(folder, str(reason)))
    accepted = f"expected runs of Tables 1 and 2 with a {METRICS_FILE}"
    require(bool(losses), "runs", ", ".join(str(folder) for folder in compared["folder"][:3]), accepted)
    validated = all(validation.size >= MIN_VALIDATIONS for validation, _ in losses.values())
    window = max(1, round(SMOOTHED_FRACTION * int(compared["num_steps"].max())))
    quantity = "validation loss" if validated else f"training loss, mean of {window} steps"
    points = []
    for index, (validation, training) in losses.items():
        run = compared.loc[[index], ["optimizer", "condition", "seed"]]
        curve = validation if validated else smooth(training, window)
        points.append(run.merge(curve.rename_axis("step").rename("loss").reset_index(), how="cross"))
    return LossCurves(pd.concat(points, ignore_index=True), quantity, passed_over)


def _losses(folder: Path, num_steps: int) -> tuple[pd.Series, pd.Series]:
    """Validation and training losses by step. Raises UnusableRun where there are none that can be read, or not all."""
    validation, training = series(folder, "val/loss", "train/loss")
    if training.empty:
        raise UnusableRun(f"{METRICS_FILE} has no losses")
    if training.index.max() != num_steps - 1:
        raise UnusableRun(f"{METRICS_FILE} ends at step {training.index.max()} of {num_steps}")
    return validation, training
