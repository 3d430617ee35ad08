"""All parts of the model in one process, each with the delay that a pipeline's schedule would give it.

Batch t runs forward and backward, micro-batch by micro-batch, on version max(t - delay, 0) of each part's weights;
its update makes version t + 1. With no delay this is gradient accumulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from asyncpp.model.auxiliary import Auxiliary, load_metrics
from asyncpp.pipeline.clipping import Clipping, Decision, Norms
from asyncpp.pipeline.compute import Compute
from asyncpp.pipeline.part import PartState
from asyncpp.pipeline.record import BatchRecord, update_record
from asyncpp.pipeline.update import correct, observe, parameter_norms, step


class BatchGradient(NamedTuple):
    """loss: of the batch, nats a token. gradients: in canonical order.

    expert_load: int64 (mixture layers, experts), how many choices went to each expert; None for a dense model.
    """

    loss: float
    gradients: list[Tensor]
    expert_load: Tensor | None


class Simulator:
    """module: the whole model, without values; names: its parameters in canonical order.

    aliases: parameter names that read another parameter's values (tied embeddings), alias to canonical name.
    states: of all parts of the model, in its order.
    last_norms: of the batch before, None before the first: where a run goes on from a checkpoint, of the one before it.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[str],
        aliases: dict[str, str],
        states: Sequence[PartState],
        num_micro_batches: int,
        clipping: Clipping,
        compute: Compute,
        last_norms: Norms | None = None,
    ) -> None:
        self.module = module
        self.names = list(names)
        self.aliases = aliases
        self.states = states
        self.num_micro_batches = num_micro_batches
        self.clipping = clipping
        self.compute = compute
        self._last_gradients: list[Tensor] = []
        self.last_norms = last_norms
        self.needs_fresh_gradients = any(
            group.rule.needs_fresh_gradients for state in states for group in state.optimizer.groups
        )

    def train_batch(
        self, batch: int, windows: Tensor, lr_factor: float, before_update: Callable[[], None] | None = None
    ) -> BatchRecord:
        """Run batch number ``batch`` and apply its update. windows: tokens, int64 (sequences, sequence_length + 1).

        before_update: called between the gradients and the first change of any state.
        """
        versions = [state.version_for(batch) for state in self.states]
        self._last_gradients = []
        loss, gradients, expert_load = self.differentiate(self.weights_at(versions), windows)
        fresh = None
        if self.needs_fresh_gradients:
            fresh = self._by_part(self.differentiate(self.newest_weights(), windows).gradients)
        if before_update is not None:
            before_update()
        norms, decisions = self._update(batch, versions, self._by_part(gradients), lr_factor, fresh)
        # Kept until the next batch, as .grad is: freed now, malloc would return their pages and fault them in again.
        self._last_gradients = gradients
        update = update_record(norms, decisions, staleness_updates=batch - min(versions))
        return BatchRecord(loss, update, lr_factor, load_metrics(expert_load) if expert_load is not None else {})

    @torch.no_grad()
    def _update(
        self,
        batch: int,
        versions: Sequence[int],
        gradients: list[list[Tensor]],
        lr_factor: float,
        fresh_gradients: list[list[Tensor]] | None,
    ) -> tuple[Norms, list[Decision]]:
        """Bring every part from version ``batch`` to the next; return the norms and what they decided.

        versions: that each part's gradients were taken at. gradients: a list a part; consumed, as the fresh ones are.
        """
        norms, decisions = self._decide(batch, gradients)
        if any(state.correction.corrects_gradients for state in self.states):
            gradients = [
                owned if decision.skipped else correct(state, owned, version)
                for state, owned, version, decision in zip(self.states, gradients, versions, decisions, strict=True)
            ]
            norms, decisions = self._decide(batch, gradients)
        if fresh_gradients is not None:
            _, fresh = self._decide(batch, fresh_gradients)
            decisions = [
                Decision(late.clip_factor, late.skipped or new.skipped)
                for late, new in zip(decisions, fresh, strict=True)
            ]
            for state, owned, decision, new in zip(self.states, fresh_gradients, decisions, fresh, strict=True):
                if not decision.skipped:
                    observe(state, owned, new)
        for state, owned, version, decision in zip(self.states, gradients, versions, decisions, strict=True):
            step(state, owned, decision, batch, batch - version, lr_factor)
        self.last_norms = norms
        return norms, decisions

    def _decide(self, batch: int, gradients: Sequence[Sequence[Tensor]]) -> tuple[Norms, list[Decision]]:
        by_part = [parameter_norms(state, owned) for state, owned in zip(self.states, gradients, strict=True)]
        whole = {index: norm for norms in by_part for index, norm in norms.items()}
        known = {batch: whole, batch - 1: self.last_norms}
        return whole, [self.clipping.decide(batch, norms, known.get) for norms in by_part]

    def weights_at(self, versions: Sequence[int]) -> list[Tensor]:
        """The weights of each part's version in ``versions``, in canonical order."""
        return self._gather([state.versions.at(v) for state, v in zip(self.states, versions, strict=True)])

    def stale_weights(self, batch: int) -> list[Tensor]:
        """The weights that ``batch`` differentiates, in canonical order."""
        return self.weights_at([state.version_for(batch) for state in self.states])

    def newest_weights(self) -> list[Tensor]:
        """The newest version of every parameter, in canonical order."""
        return self._gather([state.versions.current for state in self.states])

    def z_weights(self) -> list[Tensor] | None:
        """The newest weights read at z, in canonical order, or None where the correction has no such reading."""
        readings = [state.z_weights() for state in self.states]
        present = [reading for reading in readings if reading is not None]
        return self._gather(present) if len(present) == len(readings) else None

    @torch.no_grad()
    def loss(self, weights: Sequence[Tensor], windows: Tensor) -> float:
        """Mean cross-entropy in nats a token of ``windows`` at ``weights``."""
        return self._forward(self._named(weights), windows).item()

    def measurements(self) -> dict[str, float]:
        """Numbers of elements, counted from the tensors: parameters, and the state in copies of them."""
        size = sum(state.num_parameters for state in self.states)
        return {
            "num_parameters": size,
            "optimizer_state_copies": sum(state.optimizer.num_state_elements() for state in self.states) / size,
            "correction_state_copies": sum(state.correction.num_state_elements() for state in self.states) / size,
        }

    def differentiate(self, weights: Sequence[Tensor], windows: Tensor) -> BatchGradient:
        """The batch's mean loss and its gradient, summed over micro-batches in order.

        The gradient is that of the loss and of the routers' auxiliary loss, which the loss does not report.
        A tied parameter has a leaf for each of its uses, and its gradients are summed after the micro-batches:
        so the sum is the same wherever the pipeline is cut.
        """
        leaves = {name: weight.detach().requires_grad_() for name, weight in self._named(weights).items()}
        micro_batches = windows.chunk(self.num_micro_batches)
        total_loss = 0.0
        sums: list[Tensor] = []
        loads: list[Tensor] = []
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
            if auxiliary.expert_load is not None:
                loads.append(auxiliary.expert_load)
        by_name = dict(zip(leaves, sums, strict=True))
        for alias, name in self.aliases.items():
            by_name[name] = by_name[name] + by_name[alias]
        expert_load = torch.stack(loads).sum(0) if loads else None
        return BatchGradient(total_loss, [by_name[name] for name in self.names], expert_load)

    def _forward(self, named_weights: dict[str, Tensor], windows: Tensor, auxiliary: Auxiliary | None = None) -> Tensor:
        return self.compute.call_part(
            self.module, windows[:, :-1], windows, is_last=True, auxiliary=auxiliary, weights=named_weights
        )

    def _named(self, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        named = dict(zip(self.names, weights, strict=True))
        return named | {alias: named[name] for alias, name in self.aliases.items()}

    def _by_part(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        """A canonical list taken apart into the parts' own."""
        return [[tensors[index] for index in state.indices] for state in self.states]

    def _gather(self, by_part: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Parts' lists put together in canonical order."""
        gathered: dict[int, Tensor] = {}
        for state, tensors in zip(self.states, by_part, strict=True):
            gathered.update(zip(state.indices, tensors, strict=True))
        return [gathered[index] for index in range(len(self.names))]
