"""What every claim comes to: statements with an effect, how sure it is, and a verdict.

A run that diverged has no loss, so that no mean holds it, but it is a result: its loss counts as infinite, and so does
a difference from a finite one. Against a seed that diverged one way nothing is said the other way; and where more than
half of a statement's seeds, MIN_SEEDS or more, diverged one way, that alone decides it. A seed whose reference diverged
says nothing. Nor does a run that ended for another reason: it was killed, the disk was full, its input was bad.
FailedRun.diverged tells them apart, divergence.with_diverged takes them in, cost() takes the differences, and
verdict_of() decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from asyncpp.errors import require
from experiments import EXPERIMENTS, Experiments
from gaps import Estimate, paper, tested
from rules.divergence import told_divergence, with_diverged

MIN_SEEDS = 3  # with two, Student's interval is 13 standard errors wide to each side, and says next to nothing


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not enough evidence"
    IDENTITY = "by construction"  # true whatever the runs: they cannot speak for it or against it


@dataclass(frozen=True)
class Statement:
    """One part of a claim at one scale, judged.

    counts: whether the claim's verdict depends on it. effect: in ``unit``, with an interval that says which kind it
    is; None without runs, and where it is not defined. threshold: what the effect is held against, in words. p_value:
    of the effect being the threshold; None where runs diverged. num_seeds: that the verdict is over, those that
    diverged among them; None where these are the effect's. runs: names of the folders behind it. reason: why there is
    no verdict, where there is none, and how many runs diverged.
    """

    text: str
    verdict: Verdict
    effect: Estimate | None
    unit: str
    threshold: str
    p_value: float | None
    runs: list[str]
    counts: bool = True
    reason: str | None = None
    num_seeds: int | None = None


@dataclass(frozen=True)
class Claim:
    """One claim of the paper at one scale (a model's name; None where nothing was run).

    rule: what would count and what would not, and why. command: what adds evidence.
    """

    name: str
    text: str
    rule: str
    scale: str | None
    verdict: Verdict
    statements: list[Statement]
    command: str

    def as_dict(self) -> dict[str, Any]:
        """Plain containers, ready for JSON. Of p-values the statement's alone, which the verdict rests on: the effect's
        own is of its being zero, whatever the threshold."""
        values = asdict(self)
        for statement in values["statements"]:
            if statement["effect"] is not None:
                del statement["effect"]["p_value"]
        return values


@dataclass(frozen=True)
class Rule:
    """How one claim is judged.

    rule: what would count and what would not, and why.
    experiments: names of EXPERIMENTS, whose runs can show it; of a scale, those of the first that says anything count.
    judge: the runs of one scale (of divergence.with_diverged) to its statements; none where they say nothing.
    more: the command that adds evidence to the runs of one scale, where more seeds of their sweep do not.
    """

    name: str
    rule: str
    experiments: tuple[str, ...]
    judge: Callable[[pd.DataFrame], list[Statement]]
    more: Callable[[pd.DataFrame], str] | None = None

    @property
    def text(self) -> str:
        """The claim itself, from paper.yaml."""
        return paper()["claims"][self.name]

    def claims(self, experiments: Experiments) -> list[Claim]:
        """The claim at every scale of which there are runs, or open at none."""
        by_scale: dict[str, Claim] = {}
        for name in self.experiments:
            for scale, frame in experiments.frames[name].items():
                failed = [run for run in experiments.failed[name] if run.model == scale]
                statements = self.judge(with_diverged(frame, failed, EXPERIMENTS[name]))
                if statements and scale not in by_scale:
                    verdict = overall(statement.verdict for statement in statements if statement.counts)
                    more = EXPERIMENTS[name].command(scale, more_seeds(frame["seed"]))
                    more = self.more(frame) if self.more else more
                    by_scale[scale] = Claim(self.name, self.text, self.rule, scale, verdict, statements, more)
        first_runs = experiments.command(self.experiments[0])
        untried = Claim(self.name, self.text, self.rule, None, Verdict.OPEN, [], first_runs)
        return list(by_scale.values()) or [untried]


def judge(
    text: str,
    effect: pd.Series | Estimate | None,
    support: pd.Series,
    *,
    unit: str,
    threshold: str,
    runs: pd.DataFrame,
    counts: bool = True,
) -> Statement:
    """A statement from one number a seed.

    effect: what a reader is told, in ``unit``, by seed or as an estimate; the mean is over its finite values. support:
    by seed, positive where the statement is true, infinite where a run diverged. runs: the rows behind it.
    """
    estimate = tested(effect[np.isfinite(effect)]) if isinstance(effect, pd.Series) else effect
    tested_support = tested(support[np.isfinite(support)])
    verdict, num_seeds = verdict_of(support), int(support.notna().sum())
    has_diverged = bool(np.isinf(support).any())
    interval = tested_support.interval if tested_support else None
    reasons = []
    if num_seeds < MIN_SEEDS or interval is None:
        reasons.append(f"{num_seeds} of at least {MIN_SEEDS} seeds")
    elif isinstance(effect, pd.Series):
        reasons.append("the interval contains the threshold")
    else:  # the interval that is shown is another one
        reasons.append(f"the margin's interval, {interval.low:.2g} to {interval.high:.2g}, contains 0")
    if verdict is not Verdict.OPEN or (has_diverged and num_seeds >= MIN_SEEDS):
        reasons.clear()
    reasons += [told for told in [told_divergence(runs)] if told]
    p_value = tested_support.p_value if tested_support and not has_diverged else None
    reason = "; ".join(reasons) or None
    return Statement(
        text, verdict, estimate, unit, threshold, p_value, sorted(names_of(runs)), counts, reason, num_seeds
    )


def verdict_of(support: pd.Series) -> Verdict:
    """Of a statement that is true where the mean of ``support`` is positive: one number a seed, NaN where a seed says
    nothing, infinite where a run diverged.

    It holds where Student's 95 % interval of the mean lies above zero, and does not hold where it lies below; with
    fewer than MIN_SEEDS seeds, or an interval that contains zero, there is not enough evidence. Infinite values are in
    no mean. One of them is enough that the opposite cannot be said, and more than half of all seeds say it themselves.
    """
    known = support.dropna()
    num_for, num_against = int((known == np.inf).sum()), int((known == -np.inf).sum())
    if len(known) >= MIN_SEEDS and 2 * max(num_for, num_against) > len(known):
        return Verdict.HOLDS if num_for > num_against else Verdict.FAILS
    finite = tested(known[np.isfinite(known)])
    if finite is None or finite.num_seeds < MIN_SEEDS or finite.interval is None:
        return Verdict.OPEN
    if finite.interval.low > 0.0 and num_against == 0:
        return Verdict.HOLDS
    if finite.interval.high < 0.0 and num_for == 0:
        return Verdict.FAILS
    return Verdict.OPEN


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a claim with several parts: it holds where all do, and does not where one does not. What is true by
    construction decides nothing."""
    given = set(verdicts) - {Verdict.IDENTITY}
    if Verdict.FAILS in given:
        return Verdict.FAILS
    return Verdict.HOLDS if given == {Verdict.HOLDS} else Verdict.OPEN


def more_seeds(seeds: Iterable[int]) -> list[int]:
    """Seeds that add evidence to those that there are: MIN_SEEDS at first, then twice as many."""
    there = {int(seed) for seed in seeds}
    return list(range(MIN_SEEDS if len(there) < MIN_SEEDS else 2 * len(there)))


def losses_by_seed(frame: pd.DataFrame, columns: Sequence[str] = ("condition",)) -> pd.DataFrame:
    """Validation losses (nats per token): a row a seed, a column for each value of ``columns``; NaN without a run,
    infinite of one that diverged.

    Raises ConfigError where two runs would stand in one place.
    """
    twice = frame[frame.duplicated(["seed", *columns], keep=False)]
    names = " and ".join(names_of(twice)[:2])
    one = f"expected one run for each seed and {', '.join(columns)}: keep one of these elsewhere"
    require(twice.empty, "runs", names, one)
    return frame.pivot(index="seed", columns=columns[0] if len(columns) == 1 else list(columns), values="val_loss")


def column(losses: pd.DataFrame, name: Any) -> pd.Series:
    """One column of losses_by_seed; NaN throughout where there is no such run."""
    if name in losses.columns:
        return losses[name]
    return pd.Series(float("nan"), index=losses.index)


def cost(losses: pd.DataFrame, late: Any, reference: Any) -> pd.Series:
    """What the column ``late`` of losses_by_seed loses against ``reference`` (nats per token), by seed: infinite where
    it diverged, and NaN where the reference did, which leaves nothing to compare with."""
    finite = column(losses, reference)
    return column(losses, late) - finite.where(np.isfinite(finite))


def names_of(frame: pd.DataFrame) -> list[str]:
    """What the runs of ``frame`` are called: sweep and folder."""
    return [f"{folder.parent.name}/{folder.name}" for folder in frame["folder"]]
