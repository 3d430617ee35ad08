"""Ranks that meet."""

from __future__ import annotations

import time

from distributed.ranks import on_ranks

from asyncpp.pipeline.mesh import Mesh, Position


def meet_late(rank: int) -> float:
    """Seconds until both are there; rank 0 comes later than a message of the pipeline may."""
    mesh = Mesh(Position(rank, 2, 1), timeout_s=1.0)
    mesh.meet(60.0)
    start_s = time.monotonic()
    time.sleep(0.0 if rank else 3.0)
    mesh.meet(60.0)
    return time.monotonic() - start_s


def test_ranks_may_start_further_apart_than_messages():
    assert min(on_ranks(2, meet_late)) > 2.5
