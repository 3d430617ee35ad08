"""Messages between stages: tensors of one shape, received ahead of time and sent without waiting.

gloo moves a posted message by threads of its own, so nothing here needs one. Two of its ways shape this file: whether
a transfer has ended is only known by waiting for it, and a wait that runs out of time ends the connection for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from asyncpp.pipeline.mesh import Group, Mesh, lost
from asyncpp.schedule.action import Payload


class Receiver:
    """The messages that ``peer`` sends, in order.

    like: a tensor of their shape, dtype and device. num_messages: how many will come in all; so many are asked for,
    since one that is asked for and never comes would keep its group from closing. depth: asked for ahead.
    """

    def __init__(self, peer: int, group: Group, like: Tensor, num_messages: int, depth: int) -> None:
        self._peer = peer
        self._group = group
        self._like = like
        self._unasked = num_messages
        self._asked: deque[tuple[dist.Work, Tensor]] = deque()
        for _ in range(depth):
            self._ask()

    def _ask(self) -> None:
        if self._unasked > 0:
            self._unasked -= 1
            buffer = torch.empty_like(self._like)
            with lost(f"rank {self._peer}"):
                work = _work(dist.irecv(buffer, self._peer, group=self._group))
            self._asked.append((work, buffer))

    def next(self, timeout: timedelta) -> Tensor:
        """Wait for the next message. Raises PeerLost."""
        work, buffer = self._asked.popleft()
        _wait(work, self._peer, timeout)
        self._ask()
        return buffer


class Sender:
    """Messages to ``peer``, of which ``depth`` may be on their way before a further one waits."""

    def __init__(self, peer: int, group: Group, depth: int) -> None:
        self._peer = peer
        self._group = group
        self._depth = depth
        self._sent: deque[tuple[dist.Work, Tensor]] = deque()

    def send(self, tensor: Tensor, timeout: timedelta) -> None:
        """Send ``tensor``, which must not change any more. Raises PeerLost."""
        if len(self._sent) == self._depth:
            self._finish_one(timeout)
        with lost(f"rank {self._peer}"):
            work = _work(dist.isend(tensor, self._peer, group=self._group))
        self._sent.append((work, tensor))

    def finish(self, timeout: timedelta) -> None:
        """Wait until everything has been taken. Raises PeerLost."""
        while self._sent:
            self._finish_one(timeout)

    def _finish_one(self, timeout: timedelta) -> None:
        work, _ = self._sent.popleft()
        _wait(work, self._peer, timeout)


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None  # None is for ranks outside the group
    return work


def _wait(work: dist.Work, peer: int, timeout: timedelta) -> None:
    with lost(f"rank {peer}"):
        work.wait(timeout)


class PeerLinks:
    """A stage's channels to the others: asyncpp.pipeline.interpreter.Links.

    like: an activation of a micro-batch, or its gradient. num_messages: by (payload, peer), of those that will come.
    depth: of every channel, the schedule's buffer size. timeout_s: how long a peer may take.
    """

    def __init__(
        self, mesh: Mesh, like: Tensor, num_messages: Mapping[tuple[Payload, int], int], depth: int, timeout_s: float
    ) -> None:
        self._mesh = mesh
        self._depth = depth
        self._timeout = timedelta(seconds=timeout_s)
        self._receivers = {
            (payload, peer): Receiver(mesh.position.rank_of(peer), mesh.p2p[payload], like, count, depth)
            for (payload, peer), count in num_messages.items()
        }
        self._senders: dict[tuple[Payload, int], Sender] = {}

    def send(self, payload: Payload, peer: int, tensor: Tensor) -> None:
        """Raises PeerLost."""
        if (payload, peer) not in self._senders:
            group = self._mesh.p2p[payload]
            self._senders[payload, peer] = Sender(self._mesh.position.rank_of(peer), group, self._depth)
        self._senders[payload, peer].send(tensor, self._timeout)

    def receive(self, payload: Payload, peer: int) -> Tensor:
        """Raises PeerLost."""
        return self._receivers[payload, peer].next(self._timeout)

    def finish(self) -> None:
        """Wait until everything that was sent has been taken. Raises PeerLost."""
        for sender in self._senders.values():
            sender.finish(self._timeout)
