"""The loss on held-out sequences, forward only, through the same stages while the training pipeline stays full."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor

from asyncpp.pipeline.compute import Compute
from asyncpp.pipeline.mesh import Mesh
from asyncpp.pipeline.p2p import Receiver, Sender
from asyncpp.pipeline.part import Part


class Evaluation:
    """windows: tokens of the held-out sequences, int64 (sequences, sequence_length + 1), the same on every rank.

    batch_size: sequences of a forward; the last one may have fewer. hidden: a tensor of the dtype and device of an
    activation, and of its size per token in the last dimension.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        mesh: Mesh,
        windows: Tensor,
        batch_size: int,
        hidden: Tensor,
        compute: Compute,
        timeout_s: float,
    ) -> None:
        self._parts = parts
        self._mesh = mesh
        self._batches = windows.split(batch_size)
        self._hidden = hidden
        self._compute = compute
        self._timeout = timedelta(seconds=timeout_s)

    def losses(self) -> dict[str, float]:
        """``val/loss`` at the newest weights x, ``val/loss_z`` at z where the correction has such a reading.

        All ranks call this at the same version, and all have the result, which is the simulator's to the bit.
        """
        losses = {"val/loss": self._mean_loss([part.state.versions.current for part in self._parts])}
        z_weights = [self._z_weights(part) for part in self._parts]
        present = [weights for weights in z_weights if weights is not None]
        if present:
            losses["val/loss_z"] = self._mean_loss(present)
        return losses

    def _z_weights(self, part: Part) -> list[Tensor] | None:
        """Of all the part's parameters, from all the replicas that update some of them."""
        state = part.state
        own = state.z_weights()
        if own is None or state.owners is None:
            return own
        values = iter(own)
        weights = zip(state.versions.current, state.owners, strict=True)
        complete = [
            next(values).contiguous() if owner == state.replica else torch.empty_like(weight)
            for weight, owner in weights
        ]
        self._mesh.exchange(complete, state.owners)
        return complete

    @torch.no_grad()
    def _mean_loss(self, weights: Sequence[Sequence[Tensor]]) -> float:
        """Mean over all tokens: a last, smaller batch counts by its size. Replicas share out the batches."""
        position = self._mesh.position
        named = [part.modules.named(values) for part, values in zip(self._parts, weights, strict=True)]
        sender = Sender(position.rank_of((position.stage + 1) % position.num_stages), self._mesh.evaluation, depth=2)
        losses = torch.zeros(len(self._batches), dtype=torch.float64)
        for index, batch in enumerate(self._batches):
            if index % position.data_parallel == position.replica:
                loss = self._loss(named, batch, sender)
                losses[index] = 0.0 if loss is None else loss
        sender.finish(self._timeout)
        rows = self._mesh.gather(losses, self._mesh.control)
        by_batch = [
            rows[(index % position.data_parallel + 1) * position.num_stages - 1][index].item()
            for index in range(len(self._batches))
        ]
        total = sum(loss * len(batch) for loss, batch in zip(by_batch, self._batches, strict=True))
        return total / sum(len(batch) for batch in self._batches)

    def _loss(self, named: Sequence[dict[str, Tensor]], batch: Tensor, sender: Sender) -> float | None:
        """The batch's mean loss, on the rank of the last part."""
        outputs = batch[:, :-1]
        for part, weights in zip(self._parts, named, strict=True):
            if not part.is_first:
                outputs = outputs if self._mesh.position.num_stages == 1 else self._receive(batch)
            skeleton = part.modules.skeleton
            outputs = self._compute.call_part(skeleton, outputs, batch, is_last=part.is_last, weights=weights)
            if part.is_last:
                return outputs.item()
            if self._mesh.position.num_stages > 1:
                sender.send(outputs, self._timeout)
        return None

    def _receive(self, batch: Tensor) -> Tensor:
        position = self._mesh.position
        before = position.rank_of((position.stage - 1) % position.num_stages)
        like = self._hidden.new_empty(batch.shape[0], batch.shape[1] - 1, self._hidden.shape[-1])
        return Receiver(before, self._mesh.evaluation, like, num_messages=1, depth=1).next(self._timeout)
