"""C4: a mixture of experts trained async with error feedback equals the synchronous one."""

from __future__ import annotations

import pandas as pd

from gaps import paper, paper_moe_comparison
from labels import CONDITIONS, in_order, optimizer_title
from rules.c1_optimizer import DEGRADES
from rules.verdicts import Rule, Statement, cost, judge, losses_by_seed


def margin() -> float:
    """Nats per token: half of what the delay costs the paper's own mixture of experts without error feedback."""
    comparison, _ = paper_moe_comparison() or (None, None)
    return comparison.gap.mean / 2.0 if comparison and comparison.gap else 0.0


def judge_mixture(frame: pd.DataFrame) -> list[Statement]:
    """What is left of the gap with EF, by optimizer."""
    frame = frame[frame["condition"].isin(list(CONDITIONS))]
    words = {name: entry["word"] for name, entry in paper()["small_model"]["losses"].items()}
    statements = []
    for optimizer in in_order(frame["optimizer"]):
        own = frame[frame["optimizer"] == optimizer]
        losses = losses_by_seed(own)
        left = cost(losses, "async_ef", "sync")
        statements.append(
            judge(
                f"{optimizer_title(optimizer)}: async with EF is no worse than sync",
                left,
                margin() - left,
                unit="nats",
                threshold=f"< {margin():.4f}",
                runs=own,
                counts=words.get(optimizer, DEGRADES) != DEGRADES,
            )
        )
    return statements


RULE = Rule(
    name="C4",
    rule=f"Equal means: worse by less than {margin():.4f} nats, half of what the delay costs the paper's own model "
    "without EF; a wider margin could not tell EF from its absence there. Better than sync counts in favour. The "
    "optimizer of the paper's large runs is not known, so those that it calls robust count and others are shown.",
    experiments=("moe",),
    judge=judge_mixture,
)
