"""Starts the ranks of a pipeline on this machine, watches over them, and says what went wrong in one line.

This process keeps the store by which the ranks find each other, so it outlives any of them. Each rank has a pipe to
it: a rank that finds its end closed has lost this process, and leaves. What every rank is doing stands on a board in
shared memory, so that a rank which can no longer speak, because it was killed or hangs, can still be named.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from asyncpp.arguments import STOP_SIGNALS
from asyncpp.pipeline.mesh import PeerLost, Position
from asyncpp.pipeline.runtime import ActionFailed, spell
from asyncpp.schedule.action import Action, Kind
from asyncpp.trainer.ending import RankFailed, TrainingFailed
from asyncpp.trainer.rank import train_rank
from asyncpp.trainer.saving import Start
from asyncpp.trainer.stop import Stopped, say_so, stop_requests

if TYPE_CHECKING:
    from asyncpp.config import Config

# What every rank has in memory before it is forked. The second is what torch.autograd.grad imports, for half a second,
# the first time that it is given gradients of the outputs.
PRELOAD = ["asyncpp.trainer.launch", "torch.fx.experimental.symbolic_shapes"]
GRACE_S = 1.0  # after the first failure: the others' reports tell which was the cause
_FIELDS = 4  # of an action on the board
_KINDS = list(Kind)


class Board:
    """What every rank is doing just now. A Watcher for one rank, read by the process that started them."""

    def __init__(self, cells: Any, rank: int) -> None:
        self._cells = cells
        self._start = rank * _FIELDS

    def begin(self, action: Action) -> None:
        fields = _KINDS.index(action.kind) + 1, action.batch, action.micro_batch, action.chunk
        self._cells[self._start : self._start + _FIELDS] = fields

    def end(self, action: Action, start_s: float, end_s: float) -> None:
        pass

    def read(self) -> Action | None:
        kind, batch, micro_batch, chunk = self._cells[self._start : self._start + _FIELDS]
        return Action(_KINDS[kind - 1], batch, micro_batch, chunk) if kind else None


def start_ranks(config: Config, folder: Path, start: Start) -> dict[str, float]:
    """Start every rank of ``config``, wait for the end, and return what rank 0's loop does.

    Raises TrainingFailed and Stopped as the loop does, RankFailed where a rank is lost. No rank outlives this call.
    """
    num_ranks = config.pipeline.num_processes
    context = multiprocessing.get_context("forkserver")  # imports torch once for all ranks, and forks without threads
    context.set_forkserver_preload(PRELOAD)
    _start_forkserver()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    cells = context.RawArray("q", num_ranks * _FIELDS + 1)  # the last one says that the ranks are to stop

    def ask_to_stop() -> None:
        cells[-1] = 1
        say_so()

    ranks: list[_Rank] = []
    try:
        for rank in range(num_ranks):
            ranks.append(_Rank(context, rank, (config, folder, start, store.port, cells)))
        with stop_requests(ask_to_stop):
            return _supervise(config, ranks, cells)
    finally:
        for rank in ranks:
            rank.end()


def _start_forkserver() -> None:
    """Start it deaf to the signals that stop a run: Slurm sends them to every process of a job."""
    resource_tracker.ensure_running()  # which the next line would start, and which lets signals in
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Rank:
    """A started process, and the pipe that it reports by."""

    def __init__(self, context: Any, rank: int, arguments: tuple[Any, ...]) -> None:
        self.rank = rank
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_rank_main, args=(rank, *arguments, theirs), name=f"rank{rank}")
        self.process.start()
        theirs.close()
        self.report: tuple[str, Any, str] | None = None  # kind, message or result, traceback

    def listen(self) -> None:
        """Take the report that the process left, if it is there."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self.report is None and self.connection.poll():
                self.report = self.connection.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _supervise(config: Config, ranks: list[_Rank], cells: Any) -> dict[str, float]:
    running = list(ranks)
    while running:
        wait([rank.process.sentinel for rank in running])
        for rank in [rank for rank in running if not rank.process.is_alive()]:
            rank.listen()
            running.remove(rank)
            if rank.report is None or rank.report[0] not in ("done", "stopped"):
                _wait_for_others(running)
                raise _failure(config, ranks, cells)
    assert ranks[0].report is not None
    kind, result, _ = ranks[0].report
    if kind == "stopped":
        raise Stopped(result)
    return result


def _wait_for_others(running: list[_Rank]) -> None:
    """A failure reaches the others in moments; what they say of it helps to find its cause."""
    deadline_s = time.monotonic() + GRACE_S
    while any(rank.process.is_alive() for rank in running) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    for rank in running:
        rank.listen()


def _failure(config: Config, ranks: list[_Rank], cells: Any) -> Exception:
    """The one cause among everything that was reported: a rank's own error, its death, or the silence of one."""
    for rank in ranks:
        if rank.report is not None and rank.report[0] == "training failed":
            return TrainingFailed(rank.report[1])
    for rank in ranks:
        if rank.report is not None and rank.report[0] == "raised":
            return RankFailed(rank.report[1], rank.report[2])
    for rank in ranks:
        if rank.report is None and not rank.process.is_alive():
            return RankFailed(f"{_whereabouts(config, rank.rank, cells)} {_death(rank.process.exitcode)}")
    silent = [rank for rank in ranks if rank.report is None]
    for rank in silent:
        limit = "start_timeout_s" if Board(cells, rank.rank).read() is None else "timeout_s"
        text = f"hangs: no answer for {getattr(config.pipeline, limit):g} s (pipeline.{limit})"
        return RankFailed(f"{_whereabouts(config, rank.rank, cells)} {text}")
    reports = [rank.report for rank in ranks if rank.report is not None and rank.report[0] == "lost"]
    return RankFailed(reports[0][1], reports[0][2])


def _whereabouts(config: Config, rank: int, cells: Any) -> str:
    position = Position(rank, config.pipeline.num_stages, config.pipeline.data_parallel)
    action = Board(cells, rank).read()
    return f"{position}, {'before its first action' if action is None else 'in ' + spell(action)},"


def _death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"left with exit code {exit_code}"


def _rank_main(
    rank: int, config: Config, folder: Path, start: Start, port: int, cells: Any, connection: Connection
) -> None:
    """The life of a rank's process. It ends at once, whatever its threads still wait for."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the process that started it decides
    threading.Thread(target=_leave_when_alone, args=(connection,), daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    position = Position(rank, config.pipeline.num_stages, config.pipeline.data_parallel)
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60.0))
        board = Board(cells, rank)
        result = train_rank(config, position, store, rank, folder, start, lambda: cells[-1] != 0, [board])
        connection.send(("done", result, ""))
        exit_code = 0
    except Stopped as stopped:
        connection.send(("stopped", stopped.step, ""))
        exit_code = 0
    except TrainingFailed as error:
        connection.send(("training failed", str(error), ""))
        exit_code = 1
    except BaseException as error:
        cause = error.cause if isinstance(error, ActionFailed) else error
        kind = "lost" if isinstance(cause, PeerLost) else "raised"
        message = str(error) if isinstance(error, ActionFailed) else f"{position}: {type(error).__name__}: {error}"
        connection.send((kind, message, traceback.format_exc()))
        exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _leave_when_alone(connection: Connection) -> None:
    """End this process when the one that started it is gone: nothing else ever comes by this pipe."""
    with contextlib.suppress(OSError):
        wait([connection])
    os._exit(1)


def _loopback() -> str:
    """The interface of this machine's own address: what gloo finds by the host's name may not be there."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
