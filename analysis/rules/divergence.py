"""Runs that diverged, as rows beside those that ended: leaving them out would call robust whatever survives."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pandas as pd

from asyncpp.errors import ConfigError
from asyncpp.records import CONFIG_FILE
from comparable_runs import AXES, comparable
from labels import CONDITIONS
from runs import FailedRun, UnusableRun, read_config


def with_diverged(frame: pd.DataFrame, failed: Iterable[FailedRun], axes: Sequence[str]) -> pd.DataFrame:
    """``frame`` (of comparable_runs with ``axes``), and those of ``failed`` that diverged, with an infinite val_loss.

    Their other columns are the axes and what FailedRun says; the rest is NaN. A run that differs from the finished ones
    in more than the axes is no evidence, nor is one that was made again and finished.
    """
    lost = [row for run in failed if run.diverged for row in _rows(run, frame, axes)]
    if not lost:
        return frame
    cell = ["optimizer", "condition", "seed", *(axis for axis in axes if axis not in AXES)]
    return pd.DataFrame([*frame.to_dict("records"), *lost]).drop_duplicates(cell, ignore_index=True)


def told_divergence(frame: pd.DataFrame) -> str:
    """How many runs of each condition diverged, in words; empty where none did."""
    return "; ".join(
        f"{lost} of {len(own)} {CONDITIONS.get(str(condition), condition)} run{'s' if len(own) > 1 else ''} diverged"
        for condition, own in frame.groupby("condition")
        if (lost := int((own["val_loss"] == math.inf).sum()))
    )


def _rows(run: FailedRun, frame: pd.DataFrame, axes: Sequence[str]) -> Sequence[dict[Hashable, Any]]:
    """The row of ``run``, or none where it cannot be compared with ``frame``.

    comparable_runs has made the finished runs agree, so that one of each kind stands for all of them.
    """
    try:
        config = read_config(run.folder / CONFIG_FILE)
        correction = json.loads(config.get("correction.name", "null"))
        alike = [frame, frame[frame["optimizer"] == run.optimizer], frame[frame["correction"] == correction]]
        firsts = [row for own in alike for row in own.head(1).to_dict("records")]
        finished = [row | {"config": read_config(row["folder"] / CONFIG_FILE)} for row in firsts]
        row = {
            "sweep_name": run.sweep_name,
            "model": run.model,
            "optimizer": run.optimizer,
            "correction": correction,
            "condition": run.condition,
            "seed": run.seed,
            "folder": run.folder,
            "data_digest": None,  # not known
            "val_loss": math.inf,
            "config": config,
        }
        together = comparable(run.folder, [*finished, row], axes).frame
    except (UnusableRun, ConfigError):
        return []
    told = [name for name in together.columns if name in row or name in axes]
    return together.loc[together["folder"] == run.folder, told].to_dict("records")
