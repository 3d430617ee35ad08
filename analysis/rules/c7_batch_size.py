"""C7: a smaller batch shrinks the gap but costs absolute loss."""

from __future__ import annotations

import pandas as pd

from labels import in_order, optimizer_title
from rules.verdicts import Rule, Statement, column, cost, judge, losses_by_seed


def judge_batch_size(frame: pd.DataFrame) -> list[Statement]:
    """The gap and the synchronous loss of the smallest against the largest batch, by optimizer."""
    frame = frame[frame["condition"].isin(["sync", "async"])]
    statements = []
    for optimizer in in_order(frame["optimizer"]):
        own = frame[frame["optimizer"] == optimizer]
        sizes = sorted(set(own["trainer.batch_size"]))
        if len(sizes) < 2:
            continue
        small, large = sizes[0], sizes[-1]
        losses = losses_by_seed(own, ["condition", "trainer.batch_size"])
        gaps = {size: cost(losses, ("async", size), ("sync", size)) for size in (small, large)}
        shrinks = gaps[small] - gaps[large]
        costs = column(losses, ("sync", small)) - column(losses, ("sync", large))
        own_runs = own[own["trainer.batch_size"].isin([small, large])]
        of = f"{optimizer_title(optimizer)}: a batch of {small} sequences instead of {large}"
        statements += [
            judge(f"{of} shrinks the gap", shrinks, -shrinks, unit="nats", threshold="< 0", runs=own_runs),
            judge(f"{of} costs synchronous loss", costs, costs, unit="nats", threshold="> 0", runs=own_runs),
        ]
    return statements


RULE = Rule(
    name="C7",
    rule="The smallest batch against the largest, at the same number of tokens and one learning rate, so that the "
    "smaller batch gets more updates: the gap (async - sync) is smaller, and "
    "the synchronous loss is higher. The claim holds where both are so for every optimizer, and does not hold where "
    "one is the other way round. Any size of either counts, as none of the paper's is known to us.",
    experiments=("batch_size",),
    judge=judge_batch_size,
)
