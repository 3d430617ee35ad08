"""What asynchrony buys: its faster schedule against the tokens that its delay costs, at equal loss.

Time to a loss is the time of a token times the tokens to that loss. Of the first, 2BW takes a part of what 1F1B takes
(overhead.step_time_ratio); of the second, a delayed run takes more (overhead.token_overhead).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gaps import Estimate, tested
from labels import CONDITIONS, in_order, optimizer_title
from overhead import Overhead, step_time_ratio, token_overhead, validation_curve
from runs import PassedOver
from table_text import MISSING, SIGNIFICANT, aligned, booktabs, csv_text, estimate_text, wrapped

FILE_NAME = "time_to_loss"
TITLE = "Time to loss. What asynchrony buys"
DELAYED = ("async", "async_ef")
MORE_MICRO_BATCHES = 4  # times as many, of a second shape: 2BW gains most with as few as there are stages
BOUNDS = {"exact": "", "lower": ">", "upper": "<", "mixed": "≈"}  # as printed before a factor
NOT_KNOWN = "not known"


@dataclass(frozen=True)
class Row:
    """One condition of one optimizer.

    overheads: of every seed that has its validation curve and the synchronous one; None for a seed without a factor.
    step_time_ratios: of 2BW over 1F1B, with the micro-batches asked for and with MORE_MICRO_BATCHES times as many.
    """

    model: str
    optimizer: str
    condition: str
    overheads: tuple[Overhead | None, ...]
    step_time_ratios: tuple[float, float]

    @property
    def tokens(self) -> Estimate | None:
        """The factor, of the delayed run over the synchronous one at equal loss.

        None where a seed has none: without it, the others would look better than all do.
        """
        factors = [overhead.tokens for overhead in self._known]
        return tested(pd.Series(factors, dtype=float), null=1.0) if len(factors) == len(self.overheads) else None

    @property
    def bound(self) -> str:
        """What ``tokens`` is of the true factor, by its seeds; a key of BOUNDS."""
        is_lower = any(overhead.is_lower_bound for overhead in self._known)
        is_upper = any(overhead.is_upper_bound for overhead in self._known)
        return ("mixed" if is_upper else "lower") if is_lower else ("upper" if is_upper else "exact")

    @property
    def times(self) -> tuple[float, ...] | None:
        """The delayed run's time over the synchronous one's, at equal loss, for each of ``step_time_ratios``."""
        tokens = self.tokens
        return tokens and tuple(tokens.mean * ratio for ratio in self.step_time_ratios)

    @property
    def num_reaching_sync(self) -> int:
        """Seeds whose delayed run comes to the synchronous one's final loss."""
        return sum(overhead.reaches_sync for overhead in self._known)

    @property
    def is_at_sync_loss(self) -> bool:
        """Whether every seed is compared at the synchronous run's final loss."""
        return not any(overhead.ends_worse for overhead in self._known)

    @property
    def verdict(self) -> str:
        """Which of the two is sooner at a loss, by the first of ``step_time_ratios``, where the interval of ``tokens``
        tells and is no bound from the wrong side."""
        tokens, ratio = self.tokens, self.step_time_ratios[0]
        if tokens is None or tokens.interval is None:
            return NOT_KNOWN
        if tokens.interval.low * ratio > 1.0 and self.bound in ("exact", "lower"):
            return "slower"
        if tokens.interval.high * ratio < 1.0 and self.bound in ("exact", "upper"):
            return "faster"
        return NOT_KNOWN

    def record(self) -> dict[str, Any]:
        """Plain values for CSV and JSON."""
        tokens, times = self.tokens, self.times
        interval = tokens.interval if tokens else None
        return {
            "scale": self.model,
            "optimizer": self.optimizer,
            "condition": self.condition,
            "num_seeds": len(self.overheads),
            "tokens_factor": tokens.mean if tokens else None,
            "tokens_factor_spread": tokens.spread if tokens else None,
            "tokens_factor_low": interval.low if interval else None,
            "tokens_factor_high": interval.high if interval else None,
            "tokens_factor_p_value": tokens.p_value if tokens else None,
            "tokens_factor_bound": self.bound if tokens else None,
            "num_seeds_reaching_sync_loss": self.num_reaching_sync,
            "step_time_factor": self.step_time_ratios[0],
            "time_factor": times[0] if times else None,
            f"step_time_factor_{MORE_MICRO_BATCHES}m": self.step_time_ratios[1],
            f"time_factor_{MORE_MICRO_BATCHES}m": times[1] if times else None,
            "async_is": self.verdict,
        }

    @property
    def _known(self) -> list[Overhead]:
        return [overhead for overhead in self.overheads if overhead is not None]


@dataclass(frozen=True)
class TimeToLoss:
    """rows: what could be compared. passed_over: runs without a validation curve, and why they do not count."""

    rows: list[Row]
    passed_over: list[PassedOver]


def compare_times(frames: Iterable[pd.DataFrame], num_stages: int, num_micro_batches: int) -> TimeToLoss:
    """A row for each scale (a frame of comparable_runs), optimizer and delayed condition that has a seed's curves.

    num_stages, num_micro_batches: of the pipeline whose schedules are compared.
    Raises ConfigError for a shape that 2BW cannot have.
    """
    few, many = num_micro_batches, MORE_MICRO_BATCHES * num_micro_batches
    ratios = step_time_ratio(num_stages, few), step_time_ratio(num_stages, many)
    rows, passed_over = [], []
    for frame in frames:
        frame = frame[frame["condition"].isin(list(CONDITIONS))]
        for optimizer in in_order(frame["optimizer"]):
            own = frame[frame["optimizer"] == optimizer]
            curves, without = _curves(own)
            passed_over += without
            for condition in DELAYED:
                overheads = overheads_by_seed(curves, condition)
                if overheads:
                    rows.append(Row(str(frame["model"].iloc[0]), optimizer, condition, tuple(overheads), ratios))
    return TimeToLoss(rows, passed_over)


Curves = dict[tuple[int, str], pd.Series]  # by seed and condition: losses by tokens


def overheads_by_seed(curves: Curves, condition: str) -> list[Overhead | None]:
    """Of one optimizer: ``condition`` against sync, for every seed that has both curves; None where nothing tells."""
    seeds = sorted({seed for seed, name in curves if name == condition and (seed, "sync") in curves})
    return [token_overhead(curves[seed, "sync"], curves[seed, condition]) for seed in seeds]


def _curves(runs: pd.DataFrame) -> tuple[Curves, list[PassedOver]]:
    curves: Curves = {}
    passed_over = []
    tokens_of_step = runs["tokens_seen"] / runs["num_steps"]
    cells = zip(runs["seed"], runs["condition"], runs["folder"], runs["num_steps"], tokens_of_step, strict=True)
    for seed, name, folder, num_steps, tokens in cells:
        curve = validation_curve(folder, num_steps, tokens)
        if curve is None:
            passed_over.append(PassedOver(folder, "no whole, finite validation curve: not in the time to a loss"))
        else:
            curves[seed, name] = curve
    return curves, passed_over


def to_markdown(rows: list[Row], num_stages: int, num_micro_batches: int) -> str:
    table = aligned(_header(num_micro_batches), [_cells(row) for row in rows], num_left=3)
    notes = wrapped(legend(rows, num_stages, num_micro_batches))
    return "\n".join([f"### {TITLE}", "", *table, "", *notes]) + "\n"


def to_csv(rows: list[Row]) -> str:
    return csv_text(pd.DataFrame([row.record() for row in rows]))


def to_latex(rows: list[Row], num_stages: int, num_micro_batches: int) -> str:
    comments = [TITLE, *legend(rows, num_stages, num_micro_batches)]
    return booktabs(comments, _header(num_micro_batches), [_cells(row) for row in rows], num_left=3)


def legend(rows: list[Row], num_stages: int, num_micro_batches: int) -> list[str]:
    """What a reader must know beside the cells."""
    few, many = rows[0].step_time_ratios
    notes = [
        "tokens: how many times the synchronous run's tokens the delayed one takes to the same validation loss, the "
        "worse of their two final ones; mean ± sample standard deviation over n seeds. Nothing is extrapolated. "
        f'"*": the p-value of its being 1 is below {SIGNIFICANT} (Student\'s t over seeds).',
        'Bounds: ">" the true factor is larger: the delayed run ends worse, so that its learning rate has come down at '
        "that loss while the synchronous one's, in mid-run, has not; planned to end there, the synchronous run would "
        'be there sooner. "<" the true factor is smaller: the same with the two runs changed over. A run that was '
        'there at its first validation may have been there sooner, too. "≈" some seeds are bounds the one way, some '
        "the other.",
        f"time: tokens x {few:.3f} with m={num_micro_batches} micro-batches, tokens x {many:.3f} with "
        f"m={MORE_MICRO_BATCHES * num_micro_batches}: the time between updates of 2BW over that of 1F1B, "
        f"m / (m + P - 1) on P={num_stages} equal stages with communication hidden (python -m asyncpp.schedule). 2BW "
        "gains most by the fewest micro-batches that it can have, m = P.",
        "to sync's loss: tokens to the synchronous run's own final loss: \"= tokens\" where all seeds are compared at "
        'that loss; "> 1.00" where no delayed run comes to it, and would need more than all that it had.',
        f"async is: faster or slower to the loss of tokens with m={num_micro_batches}, where the 95 % interval of "
        "tokens tells (Student's t over seeds): never faster by a lower bound, nor slower by an upper one.",
        "What tokens the paper's runs take to equal loss is not known to us; its throughputs are a schedule model's.",
    ]
    if any(row.tokens is None for row in rows):
        why = "a seed's delayed run ends above its first validation, or both runs were there at theirs"
        notes.append(f"{MISSING}: {why}: the factor could be anything.")
    return notes


def _header(num_micro_batches: int) -> tuple[str, ...]:
    times = f"time, m={num_micro_batches}", f"m={MORE_MICRO_BATCHES * num_micro_batches}"
    return ("scale", "optimizer", "condition", "n", "tokens", *times, "to sync's loss", "async is")


def _cells(row: Row) -> list[str]:
    num_seeds, tokens, times = len(row.overheads), row.tokens, row.times
    names = [row.model, optimizer_title(row.optimizer), CONDITIONS[row.condition], str(num_seeds)]
    if tokens is None or times is None:
        return [*names, *[MISSING] * 4, row.verdict]
    mark = BOUNDS[row.bound]
    numbers = [f"{mark}{estimate_text(tokens, 2)}", *(f"{mark}{time:.2f}" for time in times)]
    return [*names, *numbers, _to_sync(row), row.verdict]


def _to_sync(row: Row) -> str:
    if row.is_at_sync_loss:
        return "= tokens"
    return f"{row.num_reaching_sync} of {len(row.overheads)} seeds" if row.num_reaching_sync else "> 1.00"
