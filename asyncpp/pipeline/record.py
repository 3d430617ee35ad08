"""What a batch leaves behind for the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncpp.pipeline.clipping import Decision, Norms, total_norm


@dataclass(frozen=True)
class UpdateRecord:
    """What one update did to the whole model.

    grad_norm: before clipping, of the gradients that the optimizer takes. clip_factor: the smallest of any part.
    skipped: in any part. staleness_updates: newest version less the one that was read, the largest part's.
    """

    grad_norm: float
    clip_factor: float
    skipped: bool
    staleness_updates: int


@dataclass(frozen=True)
class BatchRecord:
    """loss: mean cross-entropy of the batch in nats a token, at the weights that it differentiated.

    lr_factor: what lr_schedule multiplied the peak learning rates by. metrics: further numbers for the step's row.
    """

    loss: float
    update: UpdateRecord
    lr_factor: float
    metrics: dict[str, float] = field(default_factory=dict)


def update_record(norms: Norms, decisions: Sequence[Decision], staleness_updates: int) -> UpdateRecord:
    """norms: of all parameters; decisions: of all parts."""
    return UpdateRecord(
        grad_norm=total_norm(norms),
        clip_factor=min(decision.clip_factor for decision in decisions),
        skipped=any(decision.skipped for decision in decisions),
        staleness_updates=staleness_updates,
    )
