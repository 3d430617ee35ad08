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
from table_formats import aligned, booktabs, estimate_text, wrapped

FILE_NAME = "time_to_loss"
TITLE = "Time to loss. What asynchrony buys"
DELAYED = ("async", "async_ef")
HEADER = ("scale", "optimizer", "condition", "n", "tokens", "time", "to sync's loss", "async is")


@dataclass(frozen=True)
class Row:
    """One condition of one optimizer, over the seeds that have its validation curve and the synchronous one.

    tokens: a factor, of the delayed run over the synchronous one at equal loss; is_bound: it is at least that.
    step_time_ratio: of 2BW over 1F1B. num_reaching_sync: seeds whose delayed run comes to sync's final loss.
    """

    model: str
    optimizer: str
    condition: str
    tokens: Estimate
    is_bound: bool
    num_reaching_sync: int
    step_time_ratio: float

    @property
    def time(self) -> float:
        """The delayed run's time over the synchronous one's, at equal loss."""
        return self.tokens.mean * self.step_time_ratio

    @property
    def verdict(self) -> str:
        """Which of the two is sooner at a loss, where the interval of ``tokens`` tells."""
        interval = self.tokens.interval
        if interval is None:
            return "not known (one seed)"
        if interval.low * self.step_time_ratio > 1.0:
            return "slower"
        if interval.high * self.step_time_ratio < 1.0 and not self.is_bound:
            return "faster"
        return "not known"

    def record(self) -> dict[str, Any]:
        """Plain values for CSV and JSON."""
        interval = self.tokens.interval
        return {
            "scale": self.model,
            "optimizer": self.optimizer,
            "condition": self.condition,
            "num_seeds": self.tokens.num_seeds,
            "tokens_factor": self.tokens.mean,
            "tokens_factor_spread": self.tokens.spread,
            "tokens_factor_low": interval.low if interval else None,
            "tokens_factor_high": interval.high if interval else None,
            "tokens_factor_is_bound": self.is_bound,
            "num_seeds_reaching_sync_loss": self.num_reaching_sync,
            "step_time_factor": self.step_time_ratio,
            "time_factor": self.time,
            "async_is": self.verdict,
        }


@dataclass(frozen=True)
class TimeToLoss:
    """rows: what could be compared. passed_over: runs without a validation curve, and why they do not count."""

    rows: list[Row]
    passed_over: list[PassedOver]


def compare_times(frames: Iterable[pd.DataFrame], num_stages: int, num_micro_batches: int) -> TimeToLoss:
    """A row for each scale (a frame of runs.comparable), optimizer and delayed condition that has a seed's curves.

    num_stages, num_micro_batches: of the pipeline whose schedules are compared.
    Raises ConfigError for a shape that 2BW cannot have.
    """
    ratio = step_time_ratio(num_stages, num_micro_batches)
    rows, passed_over = [], []
    for frame in frames:
        frame = frame[frame["condition"].isin(list(CONDITIONS))]
        for optimizer in in_order(frame["optimizer"]):
            own = frame[frame["optimizer"] == optimizer]
            curves, without = _curves(own)
            passed_over += without
            for condition in DELAYED:
                overheads = overheads_by_seed(curves, condition)
                tokens = tested(pd.Series([overhead.tokens for overhead in overheads], dtype=float), null=1.0)
                if tokens is not None:
                    is_bound = any(overhead.is_bound for overhead in overheads)
                    reaching = sum(overhead.reaches_sync for overhead in overheads)
                    model = str(frame["model"].iloc[0])
                    rows.append(Row(model, optimizer, condition, tokens, is_bound, reaching, ratio))
    return TimeToLoss(rows, passed_over)


Curves = dict[tuple[int, str], pd.Series]  # by seed and condition: losses by tokens


def overheads_by_seed(curves: Curves, condition: str) -> list[Overhead]:
    """Of one optimizer: ``condition`` against sync, for every seed that has both curves."""
    seeds = sorted({seed for seed, name in curves if name == condition and (seed, "sync") in curves})
    return [token_overhead(curves[seed, "sync"], curves[seed, condition]) for seed in seeds]


def _curves(runs: pd.DataFrame) -> tuple[Curves, list[PassedOver]]:
    curves: Curves = {}
    passed_over = []
    tokens_of_step = runs["tokens_seen"] / runs["num_steps"]
    cells = zip(runs["seed"], runs["condition"], runs["folder"], tokens_of_step, strict=True)
    for seed, name, folder, tokens in cells:
        curve = validation_curve(folder, tokens)
        if curve is None:
            passed_over.append(PassedOver(folder, "no finite validation curve: not in the time to a loss"))
        else:
            curves[seed, name] = curve
    return curves, passed_over


def to_markdown(rows: list[Row], num_stages: int, num_micro_batches: int) -> str:
    table = aligned(HEADER, [_cells(row) for row in rows], num_left=3)
    notes = wrapped(legend(rows, num_stages, num_micro_batches))
    return "\n".join([f"### {TITLE}", "", *table, "", *notes]) + "\n"


def to_csv(rows: list[Row]) -> str:
    return pd.DataFrame([row.record() for row in rows]).to_csv(index=False, float_format="%.6g")


def to_latex(rows: list[Row], num_stages: int, num_micro_batches: int) -> str:
    comments = [TITLE, *legend(rows, num_stages, num_micro_batches)]
    return booktabs(comments, HEADER, [_cells(row) for row in rows], num_left=3)


def legend(rows: list[Row], num_stages: int, num_micro_batches: int) -> list[str]:
    """What a reader must know beside the cells."""
    ratio = rows[0].step_time_ratio
    return [
        "tokens: how many times the synchronous run's tokens the delayed one takes to the same validation loss, the "
        "worse of their two final ones; mean ± sample standard deviation over n seeds. Nothing is extrapolated.",
        f"time: tokens x {ratio:.3f}, the time between updates of 2BW over that of 1F1B with P={num_stages} equal "
        f"stages and m={num_micro_batches} micro-batches, and communication hidden (python -m asyncpp.schedule).",
        "to sync's loss: tokens to the synchronous run's own final loss, where the delayed one comes to it; where it "
        "never does, more than all that it had (> 1.00).",
        "async is: faster or slower to that loss, where the 95 % interval of tokens tells (Student's t over seeds).",
        "A synchronous run planned for fewer tokens would anneal sooner and be there earlier: true factors are larger.",
        "No number of the paper's is beside these: tokens at equal loss of its runs are not known to us.",
    ]


def _cells(row: Row) -> list[str]:
    bound = ">" if row.is_bound else ""
    reaching, num_seeds = row.num_reaching_sync, row.tokens.num_seeds
    to_sync = "> 1.00" if reaching == 0 else "= tokens" if reaching == num_seeds else f"{reaching} of {num_seeds} seeds"
    numbers = (f"{bound}{estimate_text(row.tokens, 2)}", f"{bound}{row.time:.2f}")
    names = (row.model, optimizer_title(row.optimizer), CONDITIONS[row.condition], str(row.tokens.num_seeds))
    return [*names, *numbers, to_sync, row.verdict]
