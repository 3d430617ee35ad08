"""What a delay costs and what a correction wins back, from validation losses paired by seed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from labels import CONDITIONS
from significance import Interval, bootstrap_share, p_value, t_interval

PAPER_FILE = Path(__file__).with_name("paper.yaml")

# A gap up to this, in nats per token, is called noise whatever its spread. Our choice: as much as the synchronous
# losses of the steadiest optimizers (Muon, NorMuon, SOAP) differ over seeds at tiny scale; those of others differ more.
SMALLEST_GAP = 0.01
# The same for printed losses: they carry three decimals, so that a difference of two of them is off by up to 0.001.
PRINTED_GAP = 0.002
ROUNDING = 0.0005  # of a printed loss, each way

NO_GAP = "no gap"
IN_NOISE = "in noise"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; ``spread`` is the sample standard deviation over them, None for one seed.

    interval: of LEVEL, for the mean; it says which kind it is. p_value: of the mean being the ``null`` of tested(),
    where that is a question. None where seeds are too few for them.
    """

    mean: float
    spread: float | None
    num_seeds: int
    interval: Interval | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class Comparison:
    """One optimizer's losses by condition (nats per token), what the delay costs and the share that EF wins back.

    gap: async - sync, over the seeds that both have, with Student's interval and p-value. None where a side is
    missing, as everywhere here.
    recovered: (async - async_ef) / (async - sync) of the means over the seeds that all three have, with a bootstrap
    interval; its spread is that of the seeds' own shares. Both are None where one of them is undefined.
    undefined: NO_GAP or IN_NOISE, where the gap of those seeds is too small, or not clear of zero by its interval, for
    a share to mean anything.
    """

    losses: Mapping[str, Estimate | None]
    gap: Estimate | None
    recovered: Estimate | None
    undefined: str | None


def compare(losses: pd.DataFrame, smallest_gap: float = SMALLEST_GAP) -> Comparison:
    """Compare the conditions of one optimizer.

    losses: a row a seed, a column a condition (``sync``, ``async``, ``async_ef``), NaN where a run is missing.
    smallest_gap: in nats per token; the share of a smaller one is undefined.
    """
    losses = losses.reindex(columns=list(CONDITIONS))
    recovered, undefined = _recovered(losses.dropna(), smallest_gap)
    gap = tested(losses["async"] - losses["sync"])
    return Comparison({name: estimate(losses[name]) for name in CONDITIONS}, gap, recovered, undefined)


def compare_optimizers(frame: pd.DataFrame) -> dict[str, Comparison]:
    """The comparison of every optimizer in a frame of comparable_runs."""
    compared = frame[frame["condition"].isin(list(CONDITIONS))]
    return {
        str(optimizer): compare(runs.pivot(index="seed", columns="condition", values="val_loss"))
        for optimizer, runs in compared.groupby("optimizer")
    }


def tested(values: pd.Series, null: float = 0.0) -> Estimate | None:
    """The mean of one value a seed, with Student's interval and the p-value of its being ``null``."""
    mean = estimate(values)
    known = values.dropna().to_numpy(dtype=float)
    return mean and replace(mean, interval=t_interval(known), p_value=p_value(known - null))


@cache
def paper() -> dict[str, Any]:
    """The paper's numbers: paper.yaml as plain containers."""
    numbers = OmegaConf.to_container(OmegaConf.load(PAPER_FILE))
    return {str(key): value for key, value in dict(numbers).items()}  # pyright: ignore[reportArgumentType, reportCallIssue]


def paper_comparison(optimizer: str) -> tuple[Comparison, str] | None:
    """The paper's losses for ``optimizer``, compared as ours are, and their mark; None where it gives no loss."""
    return _of_the_paper(paper()["small_model"]["losses"].get(optimizer, {}))


def paper_moe_comparison() -> tuple[Comparison, str] | None:
    """The same for the paper's large mixture of experts, whose optimizer is not known."""
    return _of_the_paper(paper()["large_model"]["losses"])


def _of_the_paper(entry: Mapping[str, Any]) -> tuple[Comparison, str] | None:
    losses = {name: entry.get(name) for name in CONDITIONS}
    if all(loss is None for loss in losses.values()):
        return None
    comparison = compare(pd.DataFrame([losses], dtype=float), smallest_gap=PRINTED_GAP)
    if comparison.recovered is None:
        return comparison, entry["mark"]
    recovered = replace(comparison.recovered, interval=_share_within_rounding(losses))
    return replace(comparison, recovered=recovered), entry["mark"]


def _share_within_rounding(losses: Mapping[str, Any]) -> Interval:
    """The shares that losses can have which print as ``losses``."""
    sync, late, corrected = ((losses[name] - ROUNDING, losses[name] + ROUNDING) for name in CONDITIONS)
    corners = [(y - z) / (y - x) for x, y, z in itertools.product(sync, late, corrected)]
    return Interval(min(corners), max(corners), "what rounding allows")


def estimate(values: pd.Series) -> Estimate | None:
    """The mean of one value a seed, and its spread; None without a value."""
    values = values.dropna()
    if values.empty:
        return None
    return Estimate(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None, len(values))


def _recovered(losses: pd.DataFrame, smallest_gap: float) -> tuple[Estimate | None, str | None]:
    """The recovered share of the seeds that have all three conditions, or why it is undefined."""
    gaps = losses["async"] - losses["sync"]
    gains = losses["async"] - losses["async_ef"]
    gap = tested(gaps)
    if gap is None:
        return None, None
    if gap.mean <= 0.0:
        return None, NO_GAP
    if gap.mean <= smallest_gap or (gap.interval is not None and gap.interval.low <= 0.0):
        return None, IN_NOISE
    shares = estimate(gains / gaps)
    spread = shares.spread if shares and (gaps > smallest_gap).all() else None
    interval = bootstrap_share(gains.to_numpy(), gaps.to_numpy(), smallest_gap)
    return Estimate(float(gains.mean()) / gap.mean, spread, gap.num_seeds, interval), None
