"""All stages of a pipeline in one process, each with the delay that its schedule would give it.

Batch t runs forward and backward, micro-batch by micro-batch, on version max(t - delay, 0) of each stage's weights;
its update makes version t + 1. With no delay this is gradient accumulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from asyncpp.model.auxiliary import Auxiliary
from asyncpp.pipeline.stage import StageState
from asyncpp.pipeline.update import UpdateRecord, apply_update


@dataclass(frozen=True)
class BatchRecord:
    """loss: mean cross-entropy of the batch in nats a token, at the weights that it differentiated."""

    loss: float
    update: UpdateRecord


class Simulator:
    """module: the whole model, without values; names: its parameters in canonical order.

    aliases: parameter names that read another parameter's values (tied embeddings), alias to canonical name.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[str],
        aliases: dict[str, str],
        stages: Sequence[StageState],
        num_micro_batches: int,
        max_grad_norm: float | None,
    ) -> None:
        self.module = module
        self.names = list(names)
        self.aliases = aliases
        self.stages = stages
        self.num_micro_batches = num_micro_batches
        self.max_grad_norm = max_grad_norm
        self._last_gradients: list[Tensor] = []
        self.needs_fresh_gradients = any(
            group.rule.needs_fresh_gradients for stage in stages for group in stage.optimizer.groups
        )

    def train_batch(self, batch: int, windows: Tensor, lr_factor: float) -> BatchRecord:
        """Run batch number ``batch`` and apply its update. windows: tokens, int64 (sequences, sequence_length + 1)."""
        versions = [stage.version_for(batch) for stage in self.stages]
        self._last_gradients = []
        loss, gradients = self.differentiate(self.weights_at(versions), windows)
        fresh = None
        if self.needs_fresh_gradients:
            fresh = self._by_stage(self.differentiate(self.newest_weights(), windows)[1])
        by_stage = self._by_stage(gradients)
        update = apply_update(self.stages, versions, by_stage, batch, lr_factor, self.max_grad_norm, fresh)
        # Kept until the next batch, as .grad is: freed now, malloc would return their pages and fault them in again.
        self._last_gradients = gradients
        return BatchRecord(loss, update)

    def weights_at(self, versions: Sequence[int]) -> list[Tensor]:
        """The weights of each stage's version in ``versions``, in canonical order."""
        return self._gather([stage.versions.at(v) for stage, v in zip(self.stages, versions, strict=True)])

    def stale_weights(self, batch: int) -> list[Tensor]:
        """The weights that ``batch`` differentiates, in canonical order."""
        return self.weights_at([stage.version_for(batch) for stage in self.stages])

    def newest_weights(self) -> list[Tensor]:
        """The newest version of every parameter, in canonical order."""
        return self._gather([stage.versions.current for stage in self.stages])

    def z_weights(self) -> list[Tensor] | None:
        """The newest weights read at z, in canonical order, or None where the correction has no such reading."""
        readings = [stage.z_weights() for stage in self.stages]
        present = [reading for reading in readings if reading is not None]
        return self._gather(present) if len(present) == len(readings) else None

    @torch.no_grad()
    def loss(self, weights: Sequence[Tensor], windows: Tensor) -> float:
        """Mean cross-entropy in nats a token of ``windows`` at ``weights``."""
        return self._forward(self._named(weights), windows).item()

    def measurements(self) -> dict[str, float]:
        """Numbers of elements, counted from the tensors: parameters, and the state in copies of them."""
        sizes = [stage.num_parameters for stage in self.stages]
        optimizer = [stage.optimizer.state_copies() * size for stage, size in zip(self.stages, sizes, strict=True)]
        correction = [stage.correction.num_state_elements() for stage in self.stages]
        return {
            "num_parameters": sum(sizes),
            "optimizer_state_copies": sum(optimizer) / sum(sizes),
            "correction_state_copies": sum(correction) / sum(sizes),
        }

    def differentiate(self, weights: Sequence[Tensor], windows: Tensor) -> tuple[float, list[Tensor]]:
        """The batch's mean loss and its gradient, summed over micro-batches in order.

        The gradient is that of the loss and of the routers' auxiliary loss, which the loss does not report.
        A tied parameter has a leaf for each of its uses, and its gradients are summed after the micro-batches:
        so the sum is the same wherever the pipeline is cut.
        """
        leaves = {name: weight.detach().requires_grad_() for name, weight in self._named(weights).items()}
        micro_batches = windows.chunk(self.num_micro_batches)
        total_loss = 0.0
        sums: list[Tensor] = []
        for micro_batch in micro_batches:
            auxiliary = Auxiliary()
            loss = self._forward(leaves, micro_batch, auxiliary) / len(micro_batches)
            objective = loss if auxiliary.loss is None else loss + auxiliary.loss / len(micro_batches)
            gradients = torch.autograd.grad(objective, list(leaves.values()))
            if sums:
                torch._foreach_add_(sums, gradients)
            else:
                sums = list(gradients)
            total_loss += loss.item()
        by_name = dict(zip(leaves, sums, strict=True))
        for alias, name in self.aliases.items():
            by_name[name] = by_name[name] + by_name[alias]
        return total_loss, [by_name[name] for name in self.names]

    def _forward(self, named_weights: dict[str, Tensor], windows: Tensor, auxiliary: Auxiliary | None = None) -> Tensor:
        return functional_call(self.module, named_weights, (windows[:, :-1], windows[:, 1:], auxiliary))

    def _named(self, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        named = dict(zip(self.names, weights, strict=True))
        return named | {alias: named[name] for alias, name in self.aliases.items()}

    def _by_stage(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        """A canonical list taken apart into the stages' own."""
        return [[tensors[index] for index in stage.indices] for stage in self.stages]

    def _gather(self, by_stage: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Stages' lists put together in canonical order."""
        gathered: dict[int, Tensor] = {}
        for stage, tensors in zip(self.stages, by_stage, strict=True):
            gathered.update(zip(stage.indices, tensors, strict=True))
        return [gathered[index] for index in range(len(self.names))]
