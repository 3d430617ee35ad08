"""Runs of a sweep over one number, as losses and gaps against it: what figures/against.py draws.

Every function takes a frame of load_experiments, a row a run with a column for each axis of the experiment, and gives
``optimizer series x seed val_loss gap``. The gap is to the synchronous run of the same seed and optimizer, and of the
same x where that changes a synchronous run, too. It is NaN for that run itself, and where there is none.
x is NaN for a run that does not depend on it.
"""

from __future__ import annotations

import math

import pandas as pd

from asyncpp.errors import require
from labels import CONDITIONS, CORRECTIONS

COLUMNS = ["optimizer", "series", "x", "seed", "val_loss", "gap"]
STRENGTH_TITLES = {"sync": "sync", "x": "async + EF, read at x", "z": "async + EF, read at z"}
DEPTH_TITLES = {"sync": "sync", "two_bw": "2BW", "pipedream": "PipeDream"}


def over_nothing(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs of Tables 1 and 2 as they are."""
    compared = frame[frame["condition"].isin(list(CONDITIONS))]
    return _rows(_with_gap(compared, ["optimizer"]).assign(series=compared["condition"], x=math.nan))


def over_corrections(frame: pd.DataFrame) -> pd.DataFrame:
    """The delayed runs of optimizers that were tried with more corrections than error feedback."""
    more = frame["condition"].isin(set(CORRECTIONS) - set(CONDITIONS))
    tried = frame[frame["optimizer"].isin(frame.loc[more, "optimizer"])]
    rows = _rows(_with_gap(tried, ["optimizer"]).assign(series=tried["condition"], x=math.nan))
    return rows[rows["series"].isin(list(CORRECTIONS))].reset_index(drop=True)


def momentum(frame: pd.DataFrame) -> pd.Series:
    """The decay rate of the gradient's average, AdamW's first beta or Muon's momentum; NaN where there is none."""
    first_beta = frame["optimizer.betas"].map(lambda betas: betas[0] if isinstance(betas, tuple) else math.nan)
    return pd.to_numeric(frame["optimizer.momentum"]).fillna(first_beta)


def batch_tokens(frame: pd.DataFrame) -> pd.Series:
    """Tokens of a batch."""
    return frame["tokens_seen"] / frame["num_steps"]


def over_momentum(frame: pd.DataFrame) -> pd.DataFrame:
    """x: momentum."""
    return _by_condition(frame, momentum(frame))


def over_learning_rate(frame: pd.DataFrame) -> pd.DataFrame:
    """x: the peak learning rate. Optimizers that have no late run are left out, if others have one."""
    late = set(frame.loc[frame["condition"] != "sync", "optimizer"])
    kept = frame[frame["optimizer"].isin(late)] if late else frame
    return _by_condition(kept, kept["optimizer.lr"])


def over_batch_size(frame: pd.DataFrame) -> pd.DataFrame:
    """x: tokens of a batch."""
    return _by_condition(frame, batch_tokens(frame))


def over_initial_std(frame: pd.DataFrame) -> pd.DataFrame:
    """x: the standard deviation of the weights that a run starts from."""
    return _by_condition(frame, frame["model.init_std"])


def over_strength(frame: pd.DataFrame) -> pd.DataFrame:
    """x: lambda of error feedback; 0 is the delayed run without it. Series x and z: where the weights are read."""
    frame = _with_gap(frame, ["optimizer"])
    late = frame[frame["condition"].isin(["async", "async_ef"])]
    at_x = late.assign(series="x", x=pd.to_numeric(late["correction.strength"]).fillna(0.0))
    at_z = at_x[at_x["val_loss_z"].notna()]
    at_z = at_z.assign(
        series="z", gap=at_z["gap"] + at_z["val_loss_z"] - at_z["val_loss"], val_loss=at_z["val_loss_z"].astype(float)
    )
    return _rows(_levels(frame), at_x, at_z)


def over_depth(frame: pd.DataFrame) -> pd.DataFrame:
    """x: stages of the pipeline. Series two_bw: a delay of one update; pipedream: P - 1 - s of them on stage s of P.

    PipeDream on one stage has no delay: it is the synchronous run.
    """
    frame = _with_gap(frame[frame["correction"] == "none"], ["optimizer"])
    names = frame["delay"].map({"one_step": "two_bw", "pipedream": "pipedream"})
    deep = frame.assign(series=names, x=frame["pipeline.num_stages"]).dropna(subset=["series"])
    return _rows(_levels(frame), deep.assign(gap=deep["gap"].where(deep["condition"] != "sync", 0.0)))


def _by_condition(frame: pd.DataFrame, x: pd.Series) -> pd.DataFrame:
    """Every x has a synchronous run of its own."""
    placed = frame.assign(series=frame["condition"], x=x.astype(float))
    return _rows(_with_gap(placed[placed["series"].isin(list(CONDITIONS))].dropna(subset=["x"]), ["optimizer", "x"]))


def _with_gap(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Raises ConfigError where there is more than one synchronous loss to hold a run against."""
    keys = [*by, "seed"]
    sync = frame[frame["condition"] == "sync"].drop_duplicates([*keys, "val_loss"])
    twice = [folder.name for folder in sync.loc[sync.duplicated(keys, keep=False), "folder"]]
    accepted = f"expected one synchronous loss for each {', '.join(keys)}: keep one of these elsewhere"
    require(not twice, "runs", " and ".join(twice[:2]), accepted)
    sync = sync[[*keys, "val_loss"]]
    paired = frame.merge(sync, how="left", on=keys, suffixes=("", "_sync"))
    gaps = (paired["val_loss"] - paired["val_loss_sync"]).where(paired["condition"] != "sync")
    return frame.assign(gap=gaps.to_numpy())


def _levels(frame: pd.DataFrame) -> pd.DataFrame:
    """The synchronous runs, which do not depend on x."""
    sync = frame[frame["condition"] == "sync"]
    return sync.drop_duplicates(["optimizer", "seed"]).assign(series="sync", x=math.nan)


def _rows(*frames: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([frame[COLUMNS] for frame in frames], ignore_index=True)
