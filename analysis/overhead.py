"""How many more tokens, and how much more time, a delayed run takes to a loss that the synchronous one reaches, too.

Nothing is extrapolated: a run whose learning rate has decayed has no tail to go on along. The loss at which tokens are
compared is the worse of the two final ones, which both runs have been at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from asyncpp.schedule.builders import build
from asyncpp.schedule.timeline import timeline
from metrics import series
from runs import UnusableRun

VALIDATION_KEY = "val/loss"
NUM_BATCHES = 4  # of the shorter of two schedules that are timed: the longer one has one more, as long as any


@dataclass(frozen=True)
class Overhead:
    """tokens: of the delayed run over those of the synchronous one, to the same ``loss`` (nats per token).

    is_lower_bound, is_upper_bound: the true factor may be larger, or smaller; never both.
    ends_worse: ``loss`` is the delayed run's final one, and worse than the synchronous one's.
    reaches_sync: the delayed run comes to the synchronous one's final loss within its own tokens. If not, it would
    need more than all of them for that.
    """

    tokens: float
    loss: float
    is_lower_bound: bool
    is_upper_bound: bool
    ends_worse: bool
    reaches_sync: bool


def validation_curve(folder: Path, num_steps: int, tokens_of_step: float) -> pd.Series | None:
    """Validation losses by tokens seen, of the run in ``folder``. None where they cannot be read, or do not come to its
    last step, ``num_steps``: a curve that was cut short would reach no loss of the other's end."""
    try:
        (losses,) = series(folder, VALIDATION_KEY, containing=VALIDATION_KEY)  # a row in a hundred has one
    except UnusableRun:
        return None
    is_whole = len(losses) > 0 and losses.index.max() == num_steps and np.isfinite(losses).all()
    return losses.set_axis(losses.index * tokens_of_step).sort_index() if is_whole else None


def tokens_to_reach(curve: pd.Series, loss: float) -> float:
    """Tokens after which ``curve`` (losses by tokens) first is at ``loss`` or below; infinite where it never is.

    Between two validations the loss is taken as linear in the logarithm of the tokens, which is what curves of
    losses look like closest. A curve that begins at or below ``loss`` gives its first validation's tokens, which are
    too many.
    """
    reached = (curve <= loss).to_numpy()
    if not reached.any():
        return math.inf
    first = int(reached.argmax())
    tokens, losses = curve.index.to_numpy(dtype=float), curve.to_numpy()
    if first == 0:
        return float(tokens[0])
    share = (losses[first - 1] - loss) / (losses[first - 1] - losses[first])
    return float(tokens[first - 1] * (tokens[first] / tokens[first - 1]) ** share)


def token_overhead(sync: pd.Series, delayed: pd.Series) -> Overhead | None:
    """Compare two validation curves (losses by tokens) at the worse of their final losses.

    None where no factor means anything: the delayed run ends above its first validation, or both runs may have taken
    fewer tokens than they seem to.
    """
    sync_end, delayed_end = float(sync.iloc[-1]), float(delayed.iloc[-1])
    loss = max(sync_end, delayed_end)
    sync_may_take_fewer, delayed_may_take_fewer = _may_take_fewer(sync, loss), _may_take_fewer(delayed, loss)
    if delayed_end > delayed.iloc[0] or (sync_may_take_fewer and delayed_may_take_fewer):
        return None
    return Overhead(
        tokens=tokens_to_reach(delayed, loss) / tokens_to_reach(sync, loss),
        loss=loss,
        is_lower_bound=sync_may_take_fewer,
        is_upper_bound=delayed_may_take_fewer,
        ends_worse=delayed_end > sync_end,
        reaches_sync=bool((delayed <= sync_end).any()),
    )


def _may_take_fewer(curve: pd.Series, loss: float) -> bool:
    """Whether a run may be at ``loss`` sooner than tokens_to_reach says.

    It may where it ends below: in mid-run its learning rate has not come down yet, and a run that is planned to end
    there is there sooner. And it may where it was there at its first validation.
    """
    return bool(curve.iloc[-1] < loss or curve.iloc[0] <= loss)


@cache
def step_time_ratio(num_stages: int, num_micro_batches: int) -> float:
    """Time between updates of 2BW over that of 1F1B, in the steady state of their timelines.

    Equal stages, a backward twice as long as a forward, messages and updates that take no time: the paper's schedule
    model, in which it is m / (m + P - 1). Raises ConfigError for a shape that 2BW cannot have (m >= P).
    """
    two_bw, one_f_one_b = (
        timeline(build(name, num_stages, num_micro_batches, NUM_BATCHES + 1)).duration
        - timeline(build(name, num_stages, num_micro_batches, NUM_BATCHES)).duration
        for name in ("two_bw", "one_f_one_b")
    )
    return two_bw / one_f_one_b
