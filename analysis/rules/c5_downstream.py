"""C5: equal loss means equal downstream accuracy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

import downstream_table
from gaps import SMALLEST_GAP, Estimate
from labels import BENCHMARKS, optimizer_title
from rules.verdicts import MIN_SEEDS, Rule, Statement, Verdict, column, losses_by_seed, more_seeds, names_of
from significance import LEVEL, Interval

MARGIN = 0.02  # of accuracy


def judge_downstream(frame: pd.DataFrame) -> list[Statement]:
    """The difference between EF and sync on every benchmark that both were scored on, by optimizer."""
    frame = frame[np.isfinite(frame["val_loss"])]  # a run that diverged has nothing to be scored
    statements = []
    for row in downstream_table.make_rows(frame):
        if row.difference is None:
            continue
        own = frame[(frame["optimizer"] == row.optimizer) & frame["condition"].isin(["sync", "async_ef"])]
        own = own[own["seed"].isin(row.seeds["sync"] & row.seeds["async_ef"])]
        losses = losses_by_seed(own)
        loss_differences = column(losses, "async_ef") - column(losses, "sync")
        verdict, reason = decide(row, float(loss_differences.abs().max()))
        change = row.difference
        effect = Estimate(change.mean, None, change.num_seeds, Interval(change.low, change.high, change.method))
        text = f"{optimizer_title(row.optimizer)}, {BENCHMARKS[row.task].title}: async with EF scores as sync does"
        threshold = f"within {MARGIN:g}"
        statements.append(Statement(text, verdict, effect, "accuracy", threshold, None, names_of(own), reason=reason))
    return statements


def decide(row: downstream_table.Row, loss_difference: float) -> tuple[Verdict, str | None]:
    """The verdict on one benchmark, or why there is none. loss_difference: nats per token, the largest of any seed."""
    chance = BENCHMARKS[row.task].chance
    best = max(row.accuracies["sync"] or 0.0, row.accuracies["async_ef"] or 0.0)
    if not is_above(best, chance, row.num_items):
        return Verdict.OPEN, f"neither is above chance ({chance:g})"
    if loss_difference > SMALLEST_GAP:
        return Verdict.OPEN, f"losses of one seed differ by {loss_difference:.3f} nats"
    change = row.difference
    if change is None or change.num_seeds < MIN_SEEDS:
        return Verdict.OPEN, f"{change.num_seeds if change else 0} of at least {MIN_SEEDS} seeds"
    if max(abs(change.low), abs(change.high)) < MARGIN:
        return Verdict.HOLDS, None
    if change.low > MARGIN or change.high < -MARGIN:
        return Verdict.FAILS, None
    return Verdict.OPEN, "the interval contains the threshold"


def more_evidence(frame: pd.DataFrame) -> str:
    """What scores the runs that are not, and where all are, more seeds."""
    table = downstream_table.make_table(frame)
    all_scored = table is not None and not table.missing
    return downstream_table.scoring_command(frame, more_seeds(frame["seed"]) if all_scored else None)


def is_above(accuracy: float, chance: float, num_items: int) -> bool:
    """Whether the exact binomial interval (LEVEL) of ``accuracy`` on as many items lies above ``chance``."""
    test = stats.binomtest(round(accuracy * num_items), num_items, chance)
    return test.proportion_ci(LEVEL, method="exact").low > chance


RULE = Rule(
    name="C5",
    rule=f"Asked only of runs whose losses are within {SMALLEST_GAP:g} nats of each other in every seed, and whose "
    "accuracy is above chance by its exact binomial interval. Equal means that the 95 % interval of the difference, "
    f"from a bootstrap paired by item, lies within {MARGIN:g}: the paper's own differences are smaller, but a "
    "benchmark of 2,000 items can't tell less. The claim holds where every benchmark is equal, and does not hold where "
    "one differs by more.",
    experiments=("downstream", "moe", "optimizers"),
    judge=judge_downstream,
    more=more_evidence,
)
