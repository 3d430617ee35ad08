"""The update: from the gradients of batch t, x_{t+1} out of x_t.

gradients → correction → clipping by the global norm → optimizer → correction → new weight version
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpp.optim.stand_still import StandStill
from asyncpp.pipeline.stage import StageState


@dataclass(frozen=True)
class UpdateRecord:
    """What one update did. Norms are of the whole model's gradient; staleness is measured, the largest stage's."""

    grad_norm: float
    clip_factor: float
    staleness_updates: int
    skipped: bool


@torch.no_grad()
def apply_update(
    stages: Sequence[StageState],
    gradients: list[Tensor],
    batch: int,
    lr_factor: float,
    max_grad_norm: float | None,
    fresh_gradients: list[Tensor] | None = None,
) -> UpdateRecord:
    """Bring every stage from version ``batch`` to the next.

    gradients: of the mean loss of ``batch``, in canonical order; consumed.
    lr_factor: what lr_schedule multiplies the peak learning rates by.
    max_grad_norm: None leaves the gradients as they are.
    fresh_gradients: the same batch's at the newest weights, for the rules that ask for them; consumed.

    A batch whose gradients are not finite is skipped: its u is zero, and the rule for the weights still applies.
    """
    for stage in stages:
        newest, stale = stage.versions.at(batch), stage.weights_for(batch)
        owned = stage.correction.correct_gradients([gradients[i] for i in stage.indices], newest, stale)
        for index, gradient in zip(stage.indices, owned, strict=True):
            gradients[index] = gradient
    norm, clip_factor = clip(gradients, max_grad_norm)
    skipped = not math.isfinite(norm)
    if fresh_gradients is not None:
        fresh_norm, _ = clip(fresh_gradients, max_grad_norm)
        skipped = skipped or not math.isfinite(fresh_norm)
    staleness = 0
    for stage in stages:
        measured = stage.versions.newest - stage.version_for(batch)
        staleness = max(staleness, measured)
        if fresh_gradients is not None and not skipped:
            _observe(stage, fresh_gradients)
        _step(stage, gradients, batch, lr_factor, measured, skipped)
    return UpdateRecord(norm, clip_factor, staleness, skipped)


def _observe(stage: StageState, fresh_gradients: list[Tensor]) -> None:
    """Show the fresh gradients to the rules that ask for them."""
    owned = [fresh_gradients[i] for i in stage.indices]
    for group in stage.optimizer.groups:
        if group.rule.needs_fresh_gradients:
            group.rule.observe_fresh_gradients(group.select(owned))


def _step(
    stage: StageState, gradients: list[Tensor], batch: int, lr_factor: float, staleness: int, skipped: bool
) -> None:
    """The stage's optimizer, group by group, and the correction's way of applying it."""
    lr_factor *= stage.correction.lr_factor(batch, staleness)
    weights = stage.versions.advance()
    owned = [gradients[i] for i in stage.indices]
    for group in stage.optimizer.groups:
        rule = StandStill(group.rule) if skipped else group.rule
        lr = group.peak_lr * lr_factor
        stage.correction.advance(rule, group.indices, group.select(owned), group.select(weights), lr, staleness)


def clip(gradients: list[Tensor], max_norm: float | None) -> tuple[float, float]:
    """Scale ``gradients``, in place, to a joint norm of at most ``max_norm``.

    Returns their norm before, and what they were multiplied by: 1 where there is no limit or the norm is not finite.
    """
    norm = global_norm(gradients)
    factor = 1.0 if max_norm is None or not math.isfinite(norm) else clipping_factor(norm, max_norm)
    if factor < 1.0:
        torch._foreach_mul_(gradients, factor)
    return norm, factor


def global_norm(gradients: Sequence[Tensor]) -> float:
    """Root of the sum of all squares, each parameter's in fp64, summed in canonical order whatever the split."""
    norms = torch._foreach_norm(list(gradients), 2, torch.float64)
    return math.sqrt(sum(norm.item() ** 2 for norm in norms))


def clipping_factor(norm: float, max_grad_norm: float) -> float:
    """What the gradients are multiplied by so that their norm is at most ``max_grad_norm``."""
    return min(1.0, max_grad_norm / norm) if norm > 0.0 else 1.0
