"""Runs that diverged, as rows beside those that ended: leaving them out would call robust whatever survives."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from asyncpp.records import CONFIG_FILE
from comparable_runs import AXES, comparable
from experiments import Experiment
from labels import CONDITIONS
from load_experiments import require_one_point_each
from runs import FailedRun, UnusableRun, planned_tokens, read_config


def with_diverged(frame: pd.DataFrame, failed: Iterable[FailedRun], experiment: Experiment) -> pd.DataFrame:
    """``frame`` (of load_experiments), and those of ``failed`` that diverged, with an infinite val_loss.

    Their other columns are the axes and what their configuration says; the rest is NaN. A run that differs from the
    finished ones in more than the axes is no evidence: it is held to what those are held to. Nor is one that was made
    again and finished. Where two that diverged may not be compared with each other, nothing says which of them is
    right, and neither is evidence.
    """
    lost = [row for run in failed if run.diverged for row in _rows(run) if _agree(frame, [row], experiment)]
    if not _agree(frame, lost, experiment):
        lost = [row for row in lost if all(_agree(frame, [row, other], experiment) for other in lost)]
    return _together(frame, lost, experiment) if lost else frame


def told_divergence(frame: pd.DataFrame) -> str:
    """How many runs of each condition diverged, in words; empty where none did."""
    return "; ".join(
        f"{lost} of {len(own)} {CONDITIONS.get(str(condition), condition)} run{'s' if len(own) > 1 else ''} diverged"
        for condition, own in frame.groupby("condition")
        if (lost := int((own["val_loss"] == math.inf).sum()))
    )


def _rows(run: FailedRun) -> Iterator[dict[str, Any]]:
    """The row of ``run``, or none where its configuration cannot be read."""
    try:
        config = read_config(run.folder / CONFIG_FILE)
    except UnusableRun:
        return
    yield {
        "sweep_name": run.sweep_name,
        "model": run.model,
        "optimizer": run.optimizer,
        "correction": json.loads(config.get("correction.name", "null")),
        "condition": run.condition,
        "seed": run.seed,
        "folder": run.folder,
        "data_digest": run.data_digest,
        "num_steps": json.loads(config.get("trainer.num_steps", "null")),
        "tokens_seen": planned_tokens(config),  # that it was to see, as the finished ones have
        "val_loss": math.inf,
        "config": config,
    }


def _agree(frame: pd.DataFrame, rows: Sequence[dict[str, Any]], experiment: Experiment) -> bool:
    """Whether runs that diverged may be compared with the finished ones, and with each other."""
    try:
        _together(frame, rows, experiment)
    except (ValueError, TypeError):  # refused, a ConfigError, or a value of an axis that is none of its kind
        return False
    return True


def _together(frame: pd.DataFrame, rows: Sequence[dict[str, Any]], experiment: Experiment) -> pd.DataFrame:
    """``frame``, and those of ``rows`` that did not finish in another run. Raises ConfigError where they may not be
    compared, by the rules of load_experiments."""
    where, folders = frame["folder"].iloc[0].parent, [row["folder"] for row in rows]
    placed = comparable(where, [*_one_of_each_kind(frame), *rows], experiment.axes).frame
    told = [name for name in placed.columns if any(name in row for row in rows) or name in experiment.axes]
    lost = placed.loc[placed["folder"].isin(folders), told].to_dict("records")
    cell = ["optimizer", "condition", "seed", *(axis for axis in experiment.axes if axis not in AXES)]
    together = pd.DataFrame([*frame.to_dict("records"), *lost]).drop_duplicates(cell, ignore_index=True)
    require_one_point_each(where, together, experiment)
    return together


def _one_of_each_kind(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Finished runs that stand for all: comparable_runs has made those of one optimizer, and of one correction, agree
    in its values, and all in the rest and in the tokens that they read, where that is known."""
    known = frame[frame["data_digest"].notna()]
    kinds = [frame.drop_duplicates("optimizer"), frame.drop_duplicates("correction"), known.head(1)]
    rows = pd.concat(kinds).drop_duplicates("folder").to_dict("records")
    for row in rows:
        if not isinstance(row["data_digest"], str):
            row["data_digest"] = None  # which a column of texts holds as NaN
    return [{str(name): value for name, value in row.items()} for row in rows]
