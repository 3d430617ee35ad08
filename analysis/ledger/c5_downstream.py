"""C5: equal loss means equal downstream accuracy."""

from __future__ import annotations

import pandas as pd

import downstream
from gaps import Estimate
from labels import BENCHMARKS, optimizer_title
from ledger.verdicts import Rule, Statement, Verdict, column, losses_by_seed, names_of
from significance import Interval

MARGIN = 0.02  # of accuracy
EQUAL_LOSS = 0.01  # nats per token, each way: about what seeds do to a tiny model


def judge_downstream(frame: pd.DataFrame) -> list[Statement]:
    """The difference between EF and sync on every benchmark that both were scored on, by optimizer."""
    statements = []
    for row in downstream.make_rows(frame):
        if row.difference is None:
            continue
        own = frame[(frame["optimizer"] == row.optimizer) & frame["condition"].isin(["sync", "async_ef"])]
        losses = losses_by_seed(own)
        loss_difference = float((column(losses, "async_ef") - column(losses, "sync")).mean())
        verdict, reason = decide(row, loss_difference)
        change = row.difference
        effect = Estimate(change.mean, None, change.num_seeds, Interval(change.low, change.high, change.method))
        text = f"{optimizer_title(row.optimizer)}, {BENCHMARKS[row.task].title}: async with EF scores as sync does"
        threshold = f"within {MARGIN:g}"
        statements.append(Statement(text, verdict, effect, "accuracy", threshold, None, names_of(own), reason=reason))
    return statements


def decide(row: downstream.Row, loss_difference: float) -> tuple[Verdict, str | None]:
    """The verdict on one benchmark, or why there is none. loss_difference: EF - sync, nats per token."""
    chance = BENCHMARKS[row.task].chance
    best = max(row.accuracies["sync"] or 0.0, row.accuracies["async_ef"] or 0.0)
    if best < chance + MARGIN:
        return Verdict.OPEN, f"both are at chance ({chance:g})"
    if abs(loss_difference) > EQUAL_LOSS:
        return Verdict.OPEN, f"their losses differ by {loss_difference:.3f} nats"
    change = row.difference
    if change is None:
        return Verdict.OPEN, "not scored"
    if max(abs(change.low), abs(change.high)) < MARGIN:
        return Verdict.HOLDS, None
    if change.low > MARGIN or change.high < -MARGIN:
        return Verdict.FAILS, None
    return Verdict.OPEN, "the interval contains the threshold"


RULE = Rule(
    name="C5",
    rule=f"Asked only of runs whose losses are within {EQUAL_LOSS:g} nats of each other and whose accuracy is "
    f"{MARGIN:g} above chance. Equal means that the 95 % interval of the difference, from a bootstrap paired by item, "
    f"lies within {MARGIN:g}: the paper's own differences are smaller, but a benchmark of 2,000 items can't tell less. "
    "The claim holds where every benchmark is equal, and does not hold where one differs by more.",
    experiments=("downstream", "moe", "optimizers"),
    judge=judge_downstream,
)
