"""Which process is which: ``data_parallel`` pipelines of ``num_stages`` stages, and the groups that talk.

Rank r is stage r mod P of replica r div P: a pipeline's ranks are neighbours, as on a node they should be.
Kinds of traffic that could overtake each other have process groups of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from asyncpp.schedule.action import Payload

Group = dist.ProcessGroup


class PeerLost(RuntimeError):
    """Another rank has gone, or does not answer in time; ``timed_out`` tells the second from the first."""

    def __init__(self, who: str, cause: Exception) -> None:
        text = " ".join(str(cause).split())
        self.timed_out = "imed out" in text or "imeout" in text
        super().__init__(
            f"{who} does not answer (pipeline.timeout_s)" if self.timed_out else f"{who} is gone ({text[:160]})"
        )


@contextmanager
def lost(who: str) -> Iterator[None]:
    """Turn what torch.distributed raises of a communication with ``who`` into PeerLost."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(who, error) from error


@dataclass(frozen=True)
class Position:
    """A rank's place."""

    rank: int
    num_stages: int
    data_parallel: int

    @property
    def stage(self) -> int:
        return self.rank % self.num_stages

    @property
    def replica(self) -> int:
        return self.rank // self.num_stages

    @property
    def num_ranks(self) -> int:
        return self.num_stages * self.data_parallel

    def rank_of(self, stage: int) -> int:
        """The rank of another stage of the same pipeline."""
        return self.replica * self.num_stages + stage

    def __str__(self) -> str:
        replica = f" of replica {self.replica}" if self.data_parallel > 1 else ""
        return f"rank {self.rank} (stage {self.stage}{replica})"


def _new_group(ranks: list[int], timeout: timedelta | None = None, backend: str | None = None) -> Group:
    """Every rank calls this, also one that is not in ``ranks``; what that gets is of no use."""
    group: Any = dist.new_group(ranks, timeout, backend)
    return group


class Mesh:
    """The groups of a rank. torch.distributed is initialised with all ranks, each of which makes a Mesh.

    timeout_s: after so long without an answer a collective fails.
    """

    def __init__(self, position: Position, timeout_s: float) -> None:
        self.position = position
        self.timeout = timedelta(seconds=timeout_s)
        every = list(range(position.num_ranks))
        self.p2p = {payload: _new_group(every) for payload in Payload}
        self.evaluation = _new_group(every)
        # Records are small and on the CPU, wherever the weights are.
        self.reports = _new_group(every, backend="gloo", timeout=self.timeout)
        self.control = _new_group(every, backend="gloo", timeout=self.timeout)
        # In a monitored barrier only rank 0 heeds the timeout that it is given; the others wait as long as the group's
        # own says, so that this group keeps torch's long default.
        self._meeting = _new_group(every, backend="gloo")
        num_stages, num_ranks = position.num_stages, position.num_ranks
        self.replicas = self._one_of([list(range(stage, num_ranks, num_stages)) for stage in range(num_stages)])
        firsts = range(0, num_ranks, num_stages) if num_stages > 1 else ()
        self.ends = self._one_of([[first, first + num_stages - 1] for first in firsts])

    def _one_of(self, members: list[list[int]]) -> Group | None:
        """Make all these groups, as every rank has to; return the one that this rank is in."""
        own = None
        for ranks in members:
            group = _new_group(ranks, timeout=self.timeout)
            if self.position.rank in ranks:
                own = group
        return own

    def meet(self, timeout_s: float) -> None:
        """Wait until every rank is here. Not for the time in between: a pipeline with a barrier has a bubble."""
        with lost("another rank"):
            dist.monitored_barrier(self._meeting, timedelta(seconds=timeout_s))

    def gather(self, row: Tensor, group: Group) -> list[Tensor]:
        """``row`` of every rank, in order of rank; of one length everywhere, on the CPU. Waits.

        group: ``reports`` or ``control``, each of which one thread uses.
        """
        if self.position.num_ranks == 1:
            return [row]
        rows = [torch.empty_like(row) for _ in range(self.position.num_ranks)]
        with lost("another rank"):
            dist.all_gather(rows, row, group=group)
        return rows

    def average(self, tensors: list[Tensor]) -> None:
        """The mean over the replicas of this stage, in place, the same to the bit on all of them. Waits."""
        if self.position.data_parallel == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with lost("a replica"):
            dist.all_reduce(flat, group=self.replicas)
        flat /= self.position.data_parallel
        _overwrite(tensors, flat)

    def exchange(self, tensors: Sequence[Tensor], owners: Sequence[int] | None) -> None:
        """Overwrite each tensor by that of the replica which owns it; nothing where ``owners`` is None. Waits."""
        if owners is None or self.position.data_parallel == 1:
            return
        for replica in range(self.position.data_parallel):
            owned = [tensor for tensor, owner in zip(tensors, owners, strict=True) if owner == replica]
            if owned:
                self._broadcast(owned, replica)

    def _broadcast(self, tensors: list[Tensor], replica: int) -> None:
        source = replica * self.position.num_stages + self.position.stage
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with lost("a replica"):
            dist.broadcast(flat, source, group=self.replicas)
        if replica != self.position.replica:
            _overwrite(tensors, flat)

    def both_ends(self, tensor: Tensor) -> Tensor:
        """On the first and the last stage: the sum of the first's tensor and the last's, in this order. Waits."""
        shares = [torch.empty_like(tensor), torch.empty_like(tensor)]
        with lost("the other end of the pipeline"):
            dist.all_gather(shares, tensor.contiguous(), group=self.ends)
        return shares[0] + shares[1]


def _overwrite(tensors: list[Tensor], flat: Tensor) -> None:
    """Copy into ``tensors`` the elements of ``flat``, which has those of all of them in a row."""
    pieces = flat.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [piece.view_as(t) for piece, t in zip(pieces, tensors, strict=True)])
