"""Weights & Biases: files below the run folder (offline), or its server.

A run's id is its configuration's hash, so that a launch that resumes goes on with the same run there; one that starts
anew takes its place. The sweep is the run's group. Rows that a resumed launch writes again are the same to the bit,
so that it does no harm that the server, which has them, passes over them.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping

import wandb

from asyncpp.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from asyncpp.records import Status
from asyncpp.trainer.config import WandbConfig
from asyncpp.trainer.tracking.loss_figure import draw_losses
from asyncpp.trainer.tracking.tracker import Row, TrackedRun, Tracker

HOST = "api.wandb.ai"
FINISH_TIMEOUT_S = 10.0  # for what is not uploaded yet; `wandb sync` uploads the rest
EXIT_CODES = {Status.FINISHED: EXIT_DONE, Status.FAILED: EXIT_FAILED, Status.INTERRUPTED: EXIT_INTERRUPTED}


class WandbTracker(Tracker):
    """Raises RuntimeError where it is to be online and there is no key, for which wandb would ask the terminal."""

    def __init__(self, config: WandbConfig, run: TrackedRun) -> None:
        online = config.mode == "online" or (config.mode == "auto" and has_key())
        if online and not has_key():
            raise RuntimeError("logger.mode=online needs WANDB_API_KEY, or `wandb login`")
        self._folder = run.folder
        self._run = wandb.init(
            project=config.project,
            group=run.sweep_name,
            id=run.config_hash,
            name=run.folder.name,
            dir=run.folder,
            mode="online" if online else "offline",
            config=run.config,
            resume="allow" if run.first_step > 0 else None,
            reinit="create_new",  # another run of this process may not be done
            settings=wandb.Settings(console="off", silent=True, finish_timeout=FINISH_TIMEOUT_S),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, row: Row) -> None:
        self._run.log({key: value for key, value in row.items() if value is not None}, step=int(row["step"] or 0))

    def finish(self, status: Status, summary: Mapping[str, float]) -> None:
        if status == Status.FINISHED:
            self._run.log({"loss_figure": wandb.Image(draw_losses(self._folder))})
        self._run.summary.update({"status": str(status), **summary})
        self._run.finish(exit_code=EXIT_CODES[status])


def has_key() -> bool:
    """Whether this user can reach the server: WANDB_API_KEY, or what ``wandb login`` left in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False
