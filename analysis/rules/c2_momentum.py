"""C2: higher momentum means more robustness to a delay."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pandas as pd

import sweep_series
from gaps import SMALLEST_GAP
from labels import in_order, optimizer_title
from rules.divergence import told_divergence
from rules.verdicts import Rule, Statement, Verdict, cost, judge, losses_by_seed, verdict_of


def judge_momentum(frame: pd.DataFrame) -> list[Statement]:
    """The gap at the highest momentum against that at the lowest, and each step between them, by optimizer."""
    frame = frame[frame["condition"].isin(["sync", "async"])]
    frame = frame.assign(momentum=sweep_series.momentum(frame)).dropna(subset=["momentum"])
    statements = []
    for optimizer in in_order(frame["optimizer"]):
        own = frame[frame["optimizer"] == optimizer]
        losses = losses_by_seed(own, ["condition", "momentum"])
        gaps = {
            momentum: cost(losses, ("async", momentum), ("sync", momentum)) for momentum in sorted(set(own["momentum"]))
        }
        gaps = {momentum: gap for momentum, gap in gaps.items() if gap.notna().any()}
        if len(gaps) > 1:
            statements.append(_judge_gaps(optimizer, gaps, own))
    return statements


def _judge_gaps(optimizer: str, by_momentum: dict[float, pd.Series], runs: pd.DataFrame) -> Statement:
    """by_momentum: the gaps by seed, from the lowest momentum to the highest, two or more."""
    gaps = pd.DataFrame(by_momentum).dropna()  # of seeds that lack a momentum the change would be another quantity
    lowest, *_, highest = gaps.columns
    change = gaps[highest] - gaps[lowest]
    values = ", ".join(f"{momentum:g}" for momentum in gaps.columns)
    statement = judge(
        f"{optimizer_title(optimizer)}: the gap falls as momentum rises ({values})",
        change,
        -change - SMALLEST_GAP,
        unit=f"nats from {lowest:g} to {highest:g}",
        threshold=f"< {-SMALLEST_GAP:g}",
        runs=runs,
    )
    rises = [
        f"it rises from {low:g} to {high:g}"
        for low, high in pairwise(gaps.columns)
        if verdict_of(gaps[high] - gaps[low] - SMALLEST_GAP) is Verdict.HOLDS
    ]
    if rises and statement.verdict is not Verdict.FAILS:
        reason = "; ".join(filter(None, [*rises, told_divergence(runs)]))
        return replace(statement, verdict=Verdict.FAILS, reason=reason)
    has_none = verdict_of(SMALLEST_GAP - gaps.abs().max(axis="columns")) is Verdict.HOLDS
    if has_none and statement.verdict is Verdict.FAILS:
        return replace(statement, verdict=Verdict.OPEN, reason=f"no gap of more than {SMALLEST_GAP:g} that could fall")
    return statement


RULE = Rule(
    name="C2",
    rule="The gap (async - sync) at the highest momentum against that at the lowest, over the seeds that have all of "
    f"the momenta. The claim holds where the gap falls by more than {SMALLEST_GAP:g} nats for every optimizer whose "
    "momentum was varied, and no step from one momentum to the next raises it by more than that, each by its interval. "
    "It does not hold where for one optimizer a step does raise it, or the gap surely falls by less: one that does not "
    f"change is a counterexample, too. {SMALLEST_GAP:g} nats are our choice of what is noise; where every gap is below "
    "that, nothing can fall. A better loss under delay alone counts for nothing, as the synchronous loss "
    "changes with momentum, too.",
    experiments=("momentum",),
    judge=judge_momentum,
)
