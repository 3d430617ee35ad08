"""C6: a constant delay stays flat as the pipeline deepens, PipeDream's variable one does not."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from gaps import paper
from labels import in_order, optimizer_title
from rules.verdicts import Rule, Statement, Verdict, cost, judge, losses_by_seed


def judge_depth(frame: pd.DataFrame) -> list[Statement]:
    """The constant delay at the deepest against the shallowest pipeline, and PipeDream's at the deepest against sync,
    by optimizer."""
    limit, depth = (paper()["pipedream_depth"][key] for key in ("loss_gap_above", "num_stages"))
    frame = frame[frame["condition"].isin(["sync", "async", "pipedream"])]
    statements = []
    for optimizer in in_order(frame["optimizer"]):
        own = frame[frame["optimizer"] == optimizer]
        title = optimizer_title(optimizer)
        losses = losses_by_seed(own, ["condition", "pipeline.num_stages"])
        stages = {name: sorted(set(runs["pipeline.num_stages"])) for name, runs in own.groupby("condition")}
        constant = stages.get("async", [])
        if len(constant) > 1:
            first, last = constant[0], constant[-1]
            change = cost(losses, ("async", last), ("async", first))
            text = f"{title}: a constant delay of one step loses no more with {last} stages than with {first}"
            runs = own[own["condition"] == "async"]
            threshold = f"< {limit:g}"
            statement = judge(text, change, limit - change, unit="nats", threshold=threshold, runs=runs)
            if len(change.dropna()) > 0 and (change.dropna() == 0.0).all():  # no test: seeds repeat one identity
                reason = "the same to the last bit, as a constant delay computes the same at every depth"
                statement = replace(statement, verdict=Verdict.IDENTITY, p_value=None, reason=reason)
            statements.append(statement)
        if "pipedream" in stages and "sync" in stages:
            last = stages["pipedream"][-1]
            change = cost(losses, ("pipedream", last), ("sync", stages["sync"][0]))
            text = f"{title}: PipeDream's delay costs more than {limit:g} nats with {last} stages"
            runs = own[own["condition"] != "async"]
            threshold = f"> {limit:g}"
            statement = judge(text, change, change - limit, unit="nats", threshold=threshold, runs=runs)
            if statement.verdict is Verdict.FAILS and last < depth:
                reason = f"with {last} stages it costs less, but the paper's pipeline has {depth}"
                statement = replace(statement, verdict=Verdict.OPEN, reason=reason)
            statements.append(statement)
    return statements


RULE = Rule(
    name="C6",
    rule=f"The paper's own {paper()['pipedream_depth']['loss_gap_above']:g} nats decide over both. The constant delay "
    "is flat where its loss in the deepest pipeline is less than that above its loss in the shallowest. PipeDream "
    "loses where its loss in the deepest pipeline is more than that above the synchronous one. A shallower pipeline "
    "than the paper's can show that PipeDream loses, but not that it does not. The claim holds where both are so for "
    "every optimizer. Where the constant delay gives the same losses to the last bit at both depths, its part is so by "
    "construction, which is no evidence, and PipeDream's decides alone. The tiny model has eight layers here, to make "
    "room for eight stages.",
    experiments=("depth",),
    judge=judge_depth,
)
