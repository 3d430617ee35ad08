"""The update: from the gradients of batch t, x_{t+1} out of x_t.

    gradients → correction → clipping → optimizer → correction → new weight version

Everything here takes one part of the model; what concerns the whole model reaches it as a decision (clipping.py). The
simulator calls ``correct``, has the norms decide, and calls ``step``. On a rank of a real pipeline the settlement
(settlement.py) corrects and decides, beside the next batch's computation, and the interpreter's UPDATE calls ``step``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncpp.optim.stand_still import StandStill
from asyncpp.pipeline.clipping import Decision
from asyncpp.pipeline.part import PartState


def parameter_norms(state: PartState, gradients: Sequence[Tensor]) -> dict[int, float]:
    """The norm of each of the part's gradients, in fp64, by its parameter's canonical position."""
    norms = torch.stack(torch._foreach_norm(list(gradients), 2, torch.float64)).tolist()
    return dict(zip(state.indices, norms, strict=True))


def correct(state: PartState, gradients: list[Tensor], version: int) -> list[Tensor]:
    """The gradients as the part's correction turns them, from ``version`` of its weights to the newest."""
    if not state.correction.corrects_gradients:
        return gradients
    return state.correction.correct_gradients(gradients, state.versions.current, state.versions.at(version))


def observe(state: PartState, fresh_gradients: list[Tensor], decision: Decision) -> None:
    """Show the fresh gradients, clipped, to the part's rules that ask for them. Not for a batch that is skipped."""
    clip(fresh_gradients, decision)
    for group in state.optimizer.groups:
        if group.rule.needs_fresh_gradients:
            group.rule.observe_fresh_gradients(group.select(fresh_gradients))


@torch.no_grad()
def step(
    state: PartState, gradients: list[Tensor], decision: Decision, batch: int, staleness: int, lr_factor: float
) -> None:
    """The part's optimizer, group by group, and the correction's way of applying it: version ``batch`` to the next.

    gradients: of the mean loss of ``batch``, aligned with the part's weights; consumed.
    lr_factor: what lr_schedule multiplies the peak learning rates by.
    A batch that is skipped has a u of zero, and the rule for the weights still applies.
    Raises LookupError when the part is not at version ``batch``.
    """
    if state.versions.newest != batch:
        raise LookupError(f"part {state.number} is at weight version {state.versions.newest}, not {batch}")
    gradients = state.own(gradients)
    clip(gradients, decision)
    lr_factor *= state.correction.lr_factor(batch, staleness)
    weights = state.own(state.versions.open_next())
    for group in state.optimizer.groups:
        rule = StandStill(group.rule) if decision.skipped else group.rule
        lr = group.peak_lr * lr_factor
        state.correction.apply(rule, group.indices, group.select(gradients), group.select(weights), lr, staleness)


def clip(gradients: list[Tensor], decision: Decision) -> None:
    """Multiply by the factor of clipping, in place. Each gradient is a tensor of its own: no leaf is used twice."""
    if decision.clip_factor < 1.0:
        torch._foreach_mul_(gradients, decision.clip_factor)
