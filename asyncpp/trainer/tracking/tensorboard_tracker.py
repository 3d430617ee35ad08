"""TensorBoard: event files in <run folder>/tensorboard. `tensorboard --logdir runs` shows all runs below runs/."""

from __future__ import annotations

import json
from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from asyncpp.records import Status
from asyncpp.trainer.config import TensorboardConfig
from asyncpp.trainer.tracking.loss_figure import draw_losses
from asyncpp.trainer.tracking.tracker import Row, TrackedRun, Tracker

FOLDER = "tensorboard"


class TensorboardTracker(Tracker):
    def __init__(self, config: TensorboardConfig, run: TrackedRun) -> None:
        self._folder = run.folder
        # what an earlier launch wrote from first_step on is written again, and not to be shown twice
        self._writer = SummaryWriter(str(run.folder / FOLDER), purge_step=run.first_step)
        self._writer.add_text("config", f"```\n{json.dumps(run.config, indent=1)}\n```", run.first_step)

    def log(self, row: Row) -> None:
        step = int(row["step"] or 0)
        for key, value in row.items():
            if key != "step" and value is not None:
                self._writer.add_scalar(key, value, step)

    def finish(self, status: Status, summary: Mapping[str, float]) -> None:
        if status == Status.FINISHED:
            self._writer.add_image("loss_figure", draw_losses(self._folder), dataformats="HWC")
        self._writer.add_text("summary", json.dumps({"status": str(status), **summary}))
        self._writer.close()
