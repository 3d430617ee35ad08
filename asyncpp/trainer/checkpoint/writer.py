"""Saving while training goes on.

A save has two parts. The copy of the state into host memory may run while the next batch's gradients are made, since
they change nothing of it; it must be complete before the next update (Mohan et al., CheckFreq, FAST 2021). Hashing and
writing then take as long as they take. Only one save runs at a time: the next one waits for it.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import torch
from torch import Tensor

from asyncpp.errors import require
from asyncpp.trainer.checkpoint.config import CheckpointConfig
from asyncpp.trainer.checkpoint.manifest import CheckpointInfo
from asyncpp.trainer.checkpoint.names import file_name, is_tensor_name
from asyncpp.trainer.checkpoint.store import (
    CheckpointFailed,
    begin,
    commit,
    give_up,
    hand_in,
    partial_folder,
    require_space,
    retain,
)
from asyncpp.trainer.checkpoint.tensor_file import Layout, bytes_of, write_tensors

if TYPE_CHECKING:
    from types import TracebackType

OTHER_RANKS_TIMEOUT_S = 600.0


def warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)


class CheckpointWriter:
    """One rank's writer; rank 0 also makes each checkpoint visible and removes those that are not kept.

    root: the folder of checkpoints, on a file system that all ranks see. launch: letters and digits, the same on all
    ranks and another one at each start; it keeps apart what two launches write. report: takes a line for each save
    that failed, on the thread that trains.
    A context manager: it waits for what is being written, but for other ranks only if nothing was raised.
    """

    def __init__(
        self,
        root: Path,
        config: CheckpointConfig,
        rank: int = 0,
        num_ranks: int = 1,
        launch: str | None = None,
        report: Callable[[str], None] = warn,
    ) -> None:
        launch = launch or uuid4().hex[:8]
        require(re.fullmatch(r"[A-Za-z0-9]+", launch) is not None, "launch", launch, "expected letters and digits")
        self.root = root
        self._config = config
        self._rank = rank
        self._num_ranks = num_ranks
        self._launch = launch
        self._attempt = 0
        self._report = report
        self._buffer = _HostBuffer()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._saving: Future[str | None] | None = None
        self._failure: CheckpointFailed | None = None  # of the last save
        self._copied = threading.Event()
        self._stopped = threading.Event()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if kind is not None:
            self._stopped.set()
        self._collect()
        self._thread.shutdown()

    def save(self, info: CheckpointInfo, tensors: Mapping[str, Tensor]) -> None:
        """Begin to save this rank's part of the state after ``info.step`` updates; collective.

        tensors: by name (names.py), contiguous or not, on any device; not to be changed before wait_copied. Those
        on a GPU must have been written on its default stream. info: only rank 0's is written.
        Waits for the save before, whose failure is reported and otherwise forgotten.
        """
        for name in tensors:
            if not is_tensor_name(name):
                raise ValueError(f"{name} is not a name of a checkpoint's tensor")
        self._collect()
        self._failure = None
        self._copied.clear()
        detached = {name: tensor.detach() for name, tensor in tensors.items()}
        self._attempt += 1
        self._saving = self._thread.submit(self._save, info, detached)
        if not self._config.asynchronous:
            self._collect()

    def wait_copied(self) -> None:
        """Wait until the tensors of the last save may be changed."""
        if self._saving is not None:
            self._copied.wait()
            if self._saving.done():
                self._collect()

    def wait(self) -> None:
        """Wait until the last save is on the disk (this rank's part; on rank 0 all of it). Raises CheckpointFailed."""
        self._collect()
        if self._failure is not None:
            raise self._failure

    def _collect(self) -> None:
        """Wait for the save that is running, and report it if it failed."""
        saving, self._saving = self._saving, None
        if saving is not None:
            try:
                note = saving.result()
                if note is not None:
                    self._report(note)
            except CheckpointFailed as failure:
                self._failure = failure
                self._report(f"{failure}; earlier checkpoints are as they were")

    def _save(self, info: CheckpointInfo, tensors: dict[str, Tensor]) -> str | None:
        """Everything that a save does, on the writer's thread. Returns a line to report. Raises CheckpointFailed."""
        partial = partial_folder(self.root, info.step, self._launch, self._attempt)
        try:
            self._write(info, tensors, partial)
        except OSError as error:
            what = f"cannot write {error.filename or partial} ({error.strerror})"
            raise CheckpointFailed(f"no checkpoint of step {info.step}: {what}") from None
        except CheckpointFailed as failure:
            raise CheckpointFailed(f"no checkpoint of step {info.step}: {failure}") from None
        finally:
            self._copied.set()
        try:
            if self._rank == 0:
                retain(self.root, self._config, info.step)
        except OSError as error:
            return f"cannot remove older checkpoints from {self.root} ({error.strerror})"
        return None

    def _write(self, info: CheckpointInfo, tensors: dict[str, Tensor], partial: Path) -> None:
        handed_in = False
        try:
            layout = Layout(tensors)
            begin(self.root, info.step, self._launch, self._attempt, self._rank)
            require_space(self.root, layout.num_bytes * self._num_ranks)
            if self._config.asynchronous:
                self._buffer.copy(layout, tensors)
                tensors = self._buffer.copies
                self._copied.set()
            contents = (bytes_of(tensors[name]) for name in layout.places)
            record = write_tensors(partial / file_name(self._rank), layout, contents)
            hand_in(partial, self._rank, record)
            handed_in = True
        finally:
            if not handed_in:
                give_up(partial, self._rank)
        if self._rank == 0:
            commit(partial, info, self._num_ranks, OTHER_RANKS_TIMEOUT_S, self._stopped.is_set)


class _HostBuffer:
    """A copy of tensors in host memory, laid out as in their file; allocated once for as long as the layout stays."""

    def __init__(self) -> None:
        self._layout = Layout({})
        self.copies: dict[str, Tensor] = {}

    def copy(self, layout: Layout, tensors: Mapping[str, Tensor]) -> None:
        if layout != self._layout:
            self.copies = {}  # the old memory goes before the new comes
            pinned = any(tensor.is_cuda for tensor in tensors.values())
            try:
                memory = torch.empty(layout.num_data_bytes, dtype=torch.uint8, pin_memory=pinned)
            except RuntimeError:
                size = f"{layout.num_data_bytes:,} bytes"
                raise CheckpointFailed(f"no host memory for a copy of {size}; asynchronous=false needs none") from None
            self.copies = {
                name: memory[start:end].view(tensors[name].dtype).view(layout.shapes[name])
                for name, (start, end) in layout.places.items()
            }
            self._layout = layout
        for name, copied in self.copies.items():
            copied.copy_(tensors[name])
