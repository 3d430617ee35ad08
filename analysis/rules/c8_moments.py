"""C8: AdamW suffers mainly through its first moment."""

from __future__ import annotations

import pandas as pd

from rules.verdicts import Rule, Statement, cost, judge, losses_by_seed

MAINLY = 2.0  # times as much


def judge_moments(frame: pd.DataFrame) -> list[Statement]:
    """What a delay of AdamW's first moment alone costs, against one of its second alone."""
    split = frame["optimizer"] == "adamw_split"
    late = frame["optimizer.delayed_moment"].where(split & (frame["condition"] == "async"), frame["condition"])
    own = frame[split | (frame["optimizer"] == "adamw")].assign(late=late)
    own = own[own["late"].isin(["first", "second"]) | ((own["late"] == "sync") & (own["optimizer"] == "adamw"))]
    losses = losses_by_seed(own, ["late"])
    first, second = (cost(losses, name, "sync") for name in ("first", "second"))
    text = f"A late first moment costs more than {MAINLY:g} times what a late second moment costs"
    unit = f"nats (first - {MAINLY:g} x second)"
    difference = first - MAINLY * second
    parts = [judge(text, difference, difference, unit=unit, threshold="> 0", runs=own)]
    for name, gap in (("first", first), ("second", second)):
        runs = own[own["late"].isin([name, "sync"])]
        text = f"A late {name} moment alone costs something"
        parts.append(judge(text, gap, gap, unit="nats", threshold="> 0", runs=runs, counts=False))
    return parts


RULE = Rule(
    name="C8",
    rule="Mainly means: the first moment, late alone, costs more than twice what the second costs, late alone; both "
    "against sync, by seed. That the first costs more, but not twice as much, counts for nothing.",
    experiments=("moments",),
    judge=judge_moments,
)
