"""What a person sees of a run: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress(Protocol):
    def start(self) -> None: ...
    def step(self, num_updates: int, loss: float) -> None: ...
    def validation(self, num_updates: int, loss: float) -> None: ...
    def stop(self) -> None: ...


def progress_for(name: str, num_steps: int, tokens_per_step: int, num_done: int = 0) -> Progress:
    """A bar where standard error is a terminal, plain lines elsewhere. num_done: steps of an earlier launch."""
    console = Console(stderr=True)
    if console.is_terminal:
        return BarProgress(console, name, num_steps, tokens_per_step, num_done)
    return LineProgress(name, num_steps, tokens_per_step, num_done)


class BarProgress:
    """A bar with loss, tokens per second and time left."""

    def __init__(self, console: Console, name: str, num_steps: int, tokens_per_step: int, num_done: int) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(name, total=num_steps, completed=num_done, numbers="")
        self._tokens_per_step = tokens_per_step
        self._validation = ""

    def start(self) -> None:
        self._bar.start()

    def step(self, num_updates: int, loss: float) -> None:
        speed = (self._bar.tasks[0].speed or 0.0) * self._tokens_per_step
        numbers = f"loss {loss:.3f}{self._validation}  {speed:,.0f} tokens/s"
        self._bar.update(self._task, completed=num_updates, numbers=numbers)

    def validation(self, num_updates: int, loss: float) -> None:
        self._validation = f"  val {loss:.3f}"

    def stop(self) -> None:
        self._bar.stop()


class LineProgress:
    """Ten lines a run, and one a validation."""

    def __init__(self, name: str, num_steps: int, tokens_per_step: int, num_done: int = 0) -> None:
        self._num_done = num_done
        self._name = name
        self._num_steps = num_steps
        self._tokens_per_step = tokens_per_step
        self._every = max(1, num_steps // 10)
        self._started_s = 0.0

    def start(self) -> None:
        self._started_s = time.perf_counter()
        print(f"{self._name}: {self._num_steps} steps", flush=True)

    def step(self, num_updates: int, loss: float) -> None:
        if num_updates % self._every == 0:
            elapsed_s = time.perf_counter() - self._started_s
            num_new = num_updates - self._num_done
            speed = num_new * self._tokens_per_step / elapsed_s
            left_s = elapsed_s / num_new * (self._num_steps - num_updates)
            print(
                f"step {num_updates}/{self._num_steps}  loss {loss:.3f}  {speed:,.0f} tokens/s  {left_s:.0f} s left",
                flush=True,
            )

    def validation(self, num_updates: int, loss: float) -> None:
        print(f"step {num_updates}/{self._num_steps}  val loss {loss:.4f}", flush=True)

    def stop(self) -> None:
        pass
