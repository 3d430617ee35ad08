"""The update: from the gradients of batch t, x_{t+1} out of x_t.

    gradients → correction → clipping by the global norm → optimizer → correction → new weight version

What concerns one stage takes that stage alone; what concerns the whole model takes the norms of its parameters.
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
class Decision:
    """What the whole model's gradient decides for every stage: its norm, the factor of clipping, or to skip."""

    grad_norm: float
    clip_factor: float
    skipped: bool


@dataclass(frozen=True)
class UpdateRecord(Decision):
    """What one update did. staleness_updates: newest version less the one that was read, the largest stage's."""

    staleness_updates: int


@torch.no_grad()
def apply_update(
    stages: Sequence[StageState],
    versions_read: Sequence[int],
    gradients: list[list[Tensor]],
    batch: int,
    lr_factor: float,
    max_grad_norm: float | None,
    fresh_gradients: list[list[Tensor]] | None = None,
) -> UpdateRecord:
    """Bring every stage from version ``batch`` to the next.

    versions_read: the weight version that each stage's gradients were taken at.
    gradients: of the mean loss of ``batch``, a list a stage in canonical order; consumed.
    lr_factor: what lr_schedule multiplies the peak learning rates by.
    max_grad_norm: None leaves the gradients as they are.
    fresh_gradients: the same batch's at the newest weights, for the rules that ask for them; consumed.

    A batch whose gradients are not finite is skipped: its u is zero, and the rule for the weights still applies.
    Raises LookupError when a stage is not at version ``batch``.
    """
    norms = [parameter_norms(owned) for owned in gradients]
    decision = decide(stages, norms, max_grad_norm)
    if not decision.skipped and any(stage.correction.corrects_gradients for stage in stages):
        gradients = [
            stage.correction.correct_gradients(owned, stage.versions.current, stage.versions.at(version))
            for stage, owned, version in zip(stages, gradients, versions_read, strict=True)
        ]
        decision = decide(stages, [parameter_norms(owned) for owned in gradients], max_grad_norm)
    if fresh_gradients is not None and not decision.skipped:
        fresh = decide(stages, [parameter_norms(owned) for owned in fresh_gradients], max_grad_norm)
        decision = Decision(decision.grad_norm, decision.clip_factor, fresh.skipped)
        for stage, owned in zip(stages, fresh_gradients, strict=True):
            observe(stage, owned, fresh)
    for stage, owned, version in zip(stages, gradients, versions_read, strict=True):
        step(stage, owned, decision, batch, batch - version, lr_factor)
    return UpdateRecord(
        decision.grad_norm, decision.clip_factor, decision.skipped, staleness_updates=batch - min(versions_read)
    )


def parameter_norms(gradients: Sequence[Tensor]) -> list[float]:
    """The norm of each gradient, in fp64: what a stage tells the others."""
    return torch.stack(torch._foreach_norm(list(gradients), 2, torch.float64)).tolist()


def decide(stages: Sequence[StageState], norms: Sequence[Sequence[float]], max_grad_norm: float | None) -> Decision:
    """From every parameter's norm, a list a stage, to what all stages do.

    The squares are summed in canonical order of the parameters, so the sum does not depend on the split.
    """
    by_index = {
        index: norm
        for stage, owned in zip(stages, norms, strict=True)
        for index, norm in zip(stage.indices, owned, strict=True)
    }
    total = math.sqrt(sum(by_index[index] ** 2 for index in sorted(by_index)))
    if not math.isfinite(total):
        return Decision(total, clip_factor=1.0, skipped=True)
    if max_grad_norm is None or total <= max_grad_norm:
        return Decision(total, clip_factor=1.0, skipped=False)
    return Decision(total, max_grad_norm / total, skipped=False)


def observe(stage: StageState, fresh_gradients: list[Tensor], decision: Decision) -> None:
    """Show the fresh gradients, clipped, to the stage's rules that ask for them."""
    if decision.skipped:
        return
    clip(fresh_gradients, decision)
    for group in stage.optimizer.groups:
        if group.rule.needs_fresh_gradients:
            group.rule.observe_fresh_gradients(group.select(fresh_gradients))


def step(
    stage: StageState, gradients: list[Tensor], decision: Decision, batch: int, staleness: int, lr_factor: float
) -> None:
    """The stage's optimizer, group by group, and the correction's way of applying it: version ``batch`` to the next."""
    if stage.versions.newest != batch:
        raise LookupError(f"stage {stage.stage} is at weight version {stage.versions.newest}, not {batch}")
    clip(gradients, decision)
    lr_factor *= stage.correction.lr_factor(batch, staleness)
    weights = stage.versions.open_next()
    for group in stage.optimizer.groups:
        rule = StandStill(group.rule) if decision.skipped else group.rule
        lr = group.peak_lr * lr_factor
        stage.correction.apply(rule, group.indices, group.select(gradients), group.select(weights), lr, staleness)


def clip(gradients: list[Tensor], decision: Decision) -> None:
    """Multiply by the factor of clipping, in place. Each gradient is a tensor of its own: no leaf is used twice."""
    if decision.clip_factor < 1.0:
        torch._foreach_mul_(gradients, decision.clip_factor)
