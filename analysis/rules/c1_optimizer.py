"""C1: the harm of a one-step delay depends on the optimizer."""

from __future__ import annotations

import math

import pandas as pd

from gaps import paper, paper_comparison
from labels import in_order, optimizer_title
from rules.verdicts import Rule, Statement, cost, judge, losses_by_seed

DEGRADES = "degrades badly"
NO_WORD = "below the threshold (no word of the paper is known)"


def gap_between_words() -> float:
    """Nats per token, half-way on a logarithmic scale between the largest gap of an optimizer that the paper calls
    robust and the smallest of one that degrades badly."""
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for optimizer, entry in paper()["small_model"]["losses"].items():
        comparison, _ = paper_comparison(optimizer) or (None, None)
        if comparison and comparison.gap:
            gaps[entry["word"] == DEGRADES].append(comparison.gap.mean)
    return math.sqrt(max(gaps[False]) * min(gaps[True]))


def judge_optimizers(frame: pd.DataFrame) -> list[Statement]:
    """Every optimizer held to the paper's word for it, and AdamW's gap to Muon's."""
    limit = gap_between_words()
    words = {name: entry["word"] for name, entry in paper()["small_model"]["losses"].items()}
    frame = frame[frame["condition"].isin(["sync", "async"])]
    statements, gaps = [], {}
    for optimizer in in_order([*words, *frame["optimizer"]]):
        own = frame[frame["optimizer"] == optimizer]
        losses = losses_by_seed(own)
        gaps[optimizer] = gap = cost(losses, "async", "sync")
        degrades = words.get(optimizer) == DEGRADES
        statements.append(
            judge(
                f"{optimizer_title(optimizer)}: {words.get(optimizer, NO_WORD)}",
                gap,
                gap - limit if degrades else limit - gap,
                unit="nats",
                threshold=f"{'>' if degrades else '<'} {limit:.3f}",
                runs=own,
                counts=optimizer in words,
            )
        )
    more = gaps["adamw"] - gaps["muon"]
    runs = frame[frame["optimizer"].isin(["adamw", "muon"])]
    text = "AdamW loses more by a delay than Muon"
    return [judge(text, more, more, unit="nats", threshold="> 0", runs=runs), *statements]


RULE = Rule(
    name="C1",
    rule="An optimizer degrades badly where its gap (async - sync) is above, and is robust or close to it where its "
    f"gap is below {gap_between_words():.3f} nats ({math.expm1(gap_between_words()):.0%} of perplexity): half-way, on "
    "a logarithmic scale, between the paper's largest gap of a robust optimizer and AdamW's. The claim holds where "
    "every optimizer is as the paper says. A gap that is merely not zero counts for nothing.",
    experiments=("optimizers",),
    judge=judge_optimizers,
)
