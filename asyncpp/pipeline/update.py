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
    stages: Sequence[StageState], gradients: Sequence[Tensor], batch: int, lr_factor: float, max_grad_norm: float | None
) -> UpdateRecord:
    """Bring every stage from version ``batch`` to the next.

    gradients: of the mean loss of ``batch``, in canonical order; consumed.
    lr_factor: what lr_schedule multiplies the peak learning rates by.
    max_grad_norm: None leaves the gradients as they are.

    A batch whose gradients are not finite is skipped: its u is zero, and the rule for the weights still applies.
    """
    corrected = list(gradients)
    for stage in stages:
        newest, stale = stage.versions.at(batch), stage.weights_for(batch)
        owned = stage.correction.correct_gradients([gradients[i] for i in stage.indices], newest, stale)
        for index, gradient in zip(stage.indices, owned, strict=True):
            corrected[index] = gradient
    norm = global_norm(corrected)
    skipped = not math.isfinite(norm)
    clip_factor = 1.0 if max_grad_norm is None or skipped else clipping_factor(norm, max_grad_norm)
    if clip_factor < 1.0:
        torch._foreach_mul_(corrected, clip_factor)
    staleness = 0
    for stage in stages:
        measured = stage.versions.newest - stage.version_for(batch)
        staleness = max(staleness, measured)
        _step(stage, [corrected[i] for i in stage.indices], batch, lr_factor, measured, skipped)
    return UpdateRecord(norm, clip_factor, staleness, skipped)


def _step(
    stage: StageState, gradients: list[Tensor], batch: int, lr_factor: float, staleness: int, skipped: bool
) -> None:
    """The stage's optimizer, group by group, and the correction's way of applying it."""
    lr_factor *= stage.correction.lr_factor(batch, staleness)
    weights = stage.versions.advance()
    for group in stage.optimizer.groups:
        rule = StandStill(group.rule) if skipped else group.rule
        lr = group.peak_lr * lr_factor
        stage.correction.advance(rule, group.indices, group.select(gradients), group.select(weights), lr, staleness)


def global_norm(gradients: Sequence[Tensor]) -> float:
    """Root of the sum of all squares, each parameter's in fp64, summed in canonical order whatever the split."""
    norms = torch._foreach_norm(list(gradients), 2, torch.float64)
    return math.sqrt(sum(norm.item() ** 2 for norm in norms))


def clipping_factor(norm: float, max_grad_norm: float) -> float:
    """What the gradients are multiplied by so that their norm is at most ``max_grad_norm``."""
    return min(1.0, max_grad_norm / norm) if norm > 0.0 else 1.0
