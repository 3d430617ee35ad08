"""What a person sees of several runs at once: a bar each in a terminal, and a line for each one that ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from asyncpp import records
from asyncpp.errors import EXIT_INTERRUPTED
from asyncpp.records import Status


class CellWatcher:
    """Runs, each followed by the metrics file that it writes. A context manager.

    num_steps: of every run, by its folder.
    """

    def __init__(self, num_steps: Mapping[Path, int]) -> None:
        self._num_steps = num_steps
        self._num_ended = 0
        self._tasks: dict[Path, TaskID] = {}
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> CellWatcher:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def refresh(self, running: Iterable[Path]) -> None:
        """Show how far the runs in the folders ``running`` are."""
        for folder in running:
            if folder not in self._tasks:
                self._tasks[folder] = self._bars.add_task(folder.name, total=self._num_steps[folder], numbers="")
            row = records.last_metrics_row(folder / records.METRICS_FILE, "train/loss")
            if row is not None:
                speed = row[f"{records.TIME_PREFIX}tokens_per_s"]
                numbers = f"loss {row['train/loss'] or float('nan'):.3f}  {speed:,.0f} tokens/s"
                self._bars.update(self._tasks[folder], completed=row["step"] + 1, numbers=numbers)

    def ended(self, folder: Path, exit_code: int) -> None:
        """Say how the run in ``folder`` ended, with ``exit_code`` of its process."""
        self._num_ended += 1
        unfinished = Status.INTERRUPTED if exit_code == EXIT_INTERRUPTED else "died"
        summary = records.read_summary(folder) or {"status": unfinished}
        loss = summary.get("val_loss")
        result = f"val loss {loss:.4f}  {summary['duration_s']:.0f} s" if loss else summary["status"]
        if folder in self._tasks:
            self._bars.remove_task(self._tasks.pop(folder))
        self._console.print(f"[{self._num_ended}/{len(self._num_steps)}] {folder.name}  {result}", highlight=False)
