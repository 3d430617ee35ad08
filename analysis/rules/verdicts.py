"""What every claim comes to: statements with an effect, how sure it is, and one of three verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import pandas as pd

from asyncpp.errors import require
from experiments import EXPERIMENTS, Experiments
from gaps import Estimate, paper, tested

MIN_SEEDS = 3  # with two, Student's interval is 13 standard errors wide to each side, and says next to nothing


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not enough evidence"


@dataclass(frozen=True)
class Statement:
    """One part of a claim at one scale, judged.

    counts: whether the claim's verdict depends on it. effect: in ``unit``, with an interval that says which kind it
    is; None without runs, and where it is not defined. threshold: what the effect is held against, in words. p_value:
    of the effect being the threshold. num_seeds: that the verdict and the p-value are over; None where these are the
    effect's. runs: names of the folders behind it. reason: why there is no verdict, where there is none.
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
    judge: the runs of one scale to its statements; none where they say nothing.
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
                statements = self.judge(frame)
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
    runs: Iterable[str],
    counts: bool = True,
) -> Statement:
    """A statement from one number a seed.

    effect: what a reader is told, in ``unit``, by seed or as an estimate. support: by seed, positive where the
    statement is true.
    It holds where Student's 95 % interval of the mean support lies above zero, and does not hold where it lies below;
    with fewer than MIN_SEEDS seeds, or an interval that contains zero, there is not enough evidence.
    """
    estimate = tested(effect) if isinstance(effect, pd.Series) else effect
    tested_support = tested(support)
    verdict, reason = Verdict.OPEN, None
    interval = tested_support.interval if tested_support else None
    num_seeds = tested_support.num_seeds if tested_support else 0
    if num_seeds < MIN_SEEDS or interval is None:
        reason = f"{num_seeds} of at least {MIN_SEEDS} seeds"
    elif interval.low > 0.0:
        verdict = Verdict.HOLDS
    elif interval.high < 0.0:
        verdict = Verdict.FAILS
    elif isinstance(effect, pd.Series):
        reason = "the interval contains the threshold"
    else:  # the interval that is shown is another one
        reason = f"the margin's interval, {interval.low:.2g} to {interval.high:.2g}, contains 0"
    p_value = tested_support.p_value if tested_support else None
    return Statement(text, verdict, estimate, unit, threshold, p_value, sorted(runs), counts, reason, num_seeds)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a claim with several parts: it holds where all do, and does not where one does not."""
    given = set(verdicts)
    if Verdict.FAILS in given:
        return Verdict.FAILS
    return Verdict.HOLDS if given == {Verdict.HOLDS} else Verdict.OPEN


def more_seeds(seeds: Iterable[int]) -> list[int]:
    """Seeds that add evidence to those that there are: MIN_SEEDS at first, then twice as many."""
    there = {int(seed) for seed in seeds}
    return list(range(MIN_SEEDS if len(there) < MIN_SEEDS else 2 * len(there)))


def losses_by_seed(frame: pd.DataFrame, columns: Sequence[str] = ("condition",)) -> pd.DataFrame:
    """Validation losses (nats per token): a row a seed, a column for each value of ``columns``; NaN without a run.

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


def names_of(frame: pd.DataFrame) -> list[str]:
    """What the runs of ``frame`` are called: sweep and folder."""
    return [f"{folder.parent.name}/{folder.name}" for folder in frame["folder"]]
