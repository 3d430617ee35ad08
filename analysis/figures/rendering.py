"""Figures as images, several at a time: matplotlib draws on one core, so that each core has a process of its own."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import parent_process
from threading import Thread

from matplotlib.figure import Figure

from experiments import Experiments, Missing
from figures.catalogue import FAMILIES, THEORY, draw
from figures.style import in_style
from runs import PassedOver
from table_text import csv_text


@dataclass(frozen=True)
class Rendered:
    """images: by format. csv: what it draws; None of a figure that needs no runs. width_in: of the figure.
    passed_over: runs that it leaves out, and why."""

    name: str
    title: str
    caption: str
    images: dict[str, bytes]
    csv: str | None
    width_in: float
    passed_over: list[PassedOver]


def render(figure: Figure, formats: Sequence[str]) -> dict[str, bytes]:
    """Images by format, of png and svg; the same figure gives the same bytes."""
    images = {}
    with in_style():
        for format_ in formats:
            image = io.BytesIO()
            figure.savefig(image, format=format_, metadata={"Date": None} if format_ == "svg" else None)
            images[format_] = image.getvalue()
            figure.set_layout_engine("none")  # the first has laid it out, which takes as long as to draw it
    return images


def render_all(experiments: Experiments, formats: Sequence[str]) -> Iterator[Rendered | Missing]:
    """Every figure in the catalogue's order, at each scale that has its runs, or what makes them.

    Raises ChildProcessError where a process that draws was killed.
    """
    num_processes = min(_num_cores(), len(FAMILIES) + len(THEORY))
    with ProcessPoolExecutor(num_processes, initializer=_start, initargs=(experiments, tuple(formats))) as pool:
        # Theory's begin first, since they take longest.
        jobs = {entry.name: pool.submit(_render_one, entry.name) for entry in (*THEORY, *FAMILIES)}
        try:
            for entry in (*FAMILIES, *THEORY):
                yield from jobs[entry.name].result()
        except BrokenProcessPool:
            raise ChildProcessError("a process that draws was killed; was there too little memory?") from None
        finally:
            pool.shutdown(cancel_futures=True)  # after an interrupt or an error none begins any more


def _num_cores() -> int:
    """Those that this process may use, where the system says which; a job of a cluster has a share of its machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_given: tuple[Experiments, Sequence[str]]  # to a process, for all that it renders


def _start(experiments: Experiments, formats: Sequence[str]) -> None:
    global _given
    _given = (experiments, formats)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command says that it was interrupted, not its helpers
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # the pool's own processes would wait for ever for a parent that was killed


def _render_one(name: str) -> list[Rendered | Missing]:
    experiments, formats = _given
    return [
        entry
        if isinstance(entry, Missing)
        else Rendered(
            name=entry.name,
            title=entry.title,
            caption=entry.caption,
            images=render(entry.figure, formats),
            csv=None if entry.frame is None else csv_text(entry.frame),
            width_in=entry.figure.get_figwidth(),
            passed_over=entry.passed_over,
        )
        for entry in draw(experiments, name)
    ]
