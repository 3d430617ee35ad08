"""The update: from the gradients of batch t, x_{t+1} out of x_t.

    gradients → correction → clipping → optimizer → correction → new weight version

Everything here takes one stage; what concerns the whole model reaches it as a decision (clipping.py). The simulator
and a rank's settlement (settlement.py) call ``correct``, have the norms decide, and then ``step``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncpp.optim.stand_still import StandStill
from asyncpp.pipeline.clipping import Decision
from asyncpp.pipeline.stage import StageState


def parameter_norms(stage: StageState, gradients: Sequence[Tensor]) -> dict[int, float]:
    """The norm of each of the stage's gradients, in fp64, by its parameter's canonical position."""
    norms = torch.stack(torch._foreach_norm(list(gradients), 2, torch.float64)).tolist()
    return dict(zip(stage.indices, norms, strict=True))


def correct(stage: StageState, gradients: list[Tensor], version: int) -> list[Tensor]:
    """The gradients as the stage's correction turns them, from ``version`` of its weights to the newest."""
    if not stage.correction.corrects_gradients:
        return gradients
    return stage.correction.correct_gradients(gradients, stage.versions.current, stage.versions.at(version))


def observe(stage: StageState, fresh_gradients: list[Tensor], decision: Decision) -> None:
    """Show the fresh gradients, clipped, to the stage's rules that ask for them."""
    if decision.skipped:
        return
    clip(fresh_gradients, decision)
    for group in stage.optimizer.groups:
        if group.rule.needs_fresh_gradients:
            group.rule.observe_fresh_gradients(group.select(fresh_gradients))


@torch.no_grad()
def step(
    stage: StageState, gradients: list[Tensor], decision: Decision, batch: int, staleness: int, lr_factor: float
) -> None:
    """The stage's optimizer, group by group, and the correction's way of applying it: version ``batch`` to the next.

    gradients: of the mean loss of ``batch``, aligned with the stage's weights; consumed.
    lr_factor: what lr_schedule multiplies the peak learning rates by.
    A batch that is skipped has a u of zero, and the rule for the weights still applies.
    Raises LookupError when the stage is not at version ``batch``.
    """
    if stage.versions.newest != batch:
        raise LookupError(f"stage {stage.stage} is at weight version {stage.versions.newest}, not {batch}")
    gradients = stage.own(gradients)
    clip(gradients, decision)
    lr_factor *= stage.correction.lr_factor(batch, staleness)
    weights = stage.own(stage.versions.open_next())
    for group in stage.optimizer.groups:
        rule = StandStill(group.rule) if decision.skipped else group.rule
        lr = group.peak_lr * lr_factor
        stage.correction.apply(rule, group.indices, group.select(gradients), group.select(weights), lr, staleness)


def clip(gradients: list[Tensor], decision: Decision) -> None:
    """Multiply by the factor of clipping, in place. Each gradient is a tensor of its own: no leaf is used twice."""
    if decision.clip_factor < 1.0:
        torch._foreach_mul_(gradients, decision.clip_factor)
