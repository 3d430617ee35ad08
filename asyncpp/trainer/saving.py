"""When a run saves its state, and what goes with the tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from asyncpp import records
from asyncpp.data.tokens import data_digest
from asyncpp.errors import ConfigError, require
from asyncpp.model.layout import parameter_infos
from asyncpp.pipeline.clipping import Norms
from asyncpp.pipeline.part import PartState
from asyncpp.schedule.action import UPDATE, Action
from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged, CheckpointInfo
from asyncpp.trainer.checkpoint.names import CHECKPOINTS_FOLDER, step_of
from asyncpp.trainer.checkpoint.reader import Checkpoint, newest_valid
from asyncpp.trainer.checkpoint.store import CheckpointFailed, clean_up, start_anew
from asyncpp.trainer.checkpoint.writer import CheckpointWriter, warn
from asyncpp.trainer.state import load_state, state_tensors

if TYPE_CHECKING:
    from types import TracebackType

    from asyncpp.config import Config

# In these a run may differ from the one that it goes on from: its length, and how many processes share the work.
MAY_DIFFER = (
    "trainer.num_steps",
    "trainer.num_micro_batches",
    "pipeline.name",
    "pipeline.num_stages",
    "pipeline.data_parallel",
)


@dataclass(frozen=True)
class Start:
    """Where a launch of a run begins; the same on all its ranks.

    launch: a name of its own. step: updates that are done. folder: of the checkpoint after them; None at step 0.
    counters: what the checkpoint has beside tensors. data_digest: of the tokens that this launch reads.
    """

    launch: str
    step: int = 0
    folder: Path | None = None
    counters: dict[str, Any] = field(default_factory=dict)
    data_digest: str = ""

    def to_json(self) -> str:
        """For ranks that another program has started."""
        return json.dumps({**asdict(self), "folder": None if self.folder is None else str(self.folder)})

    @classmethod
    def from_json(cls, text: str) -> Start:
        values = json.loads(text)
        return cls(**{**values, "folder": None if values["folder"] is None else Path(values["folder"])})

    @property
    def metrics_bytes(self) -> int:
        """How much of the metrics file was written until then."""
        return self.counters.get("metrics_bytes", 0)

    @property
    def skipped_in_a_row(self) -> int:
        return self.counters.get("skipped_in_a_row", 0)

    @property
    def last_norms(self) -> dict[int, Norms]:
        """Of the batch before, by its number."""
        norms = self.counters.get("last_norms")
        return {self.step - 1: {int(index): norm for index, norm in norms.items()}} if norms else {}


def prepare_start(config: Config, folder: Path) -> Start:
    """Make ``folder`` ready for a launch of ``config``, and return where that begins, which is printed.

    For one process of a run, which holds the lock of the folder. It removes checkpoints that kills have left half
    written, with resume=never all of them. Where the run goes on from another's checkpoint, it replaces the metrics in
    ``folder`` by the other's up to there. Raises ConfigError for a checkpoint that the run cannot go on from.
    """
    launch, root, digest = uuid4().hex[:8], folder / CHECKPOINTS_FOLDER, data_digest(config.data)
    if config.resume == "never":
        start_anew(root)
        return Start(launch, data_digest=digest)
    clean_up(root)
    checkpoint = newest_valid(root, warn)
    from_another_run = checkpoint is None and config.resume != "auto"
    if from_another_run:
        checkpoint = _checkpoint_of_another_run(Path(config.resume))
    if checkpoint is None:
        return Start(launch, data_digest=digest)
    _check_fits(config, checkpoint, digest)
    if from_another_run:
        _copy_metrics(checkpoint, folder)
    step = checkpoint.info.step
    print(f"resuming after {step} updates from {checkpoint.folder}", flush=True)
    return Start(launch, step, checkpoint.folder, checkpoint.info.counters, digest)


def _check_fits(config: Config, checkpoint: Checkpoint, digest: str) -> None:
    """Raise ConfigError unless ``config`` can go on from ``checkpoint``. digest: of the tokens that it reads."""
    checkpoint.require_same_config(config.scientific(), MAY_DIFFER)
    step, num_steps = checkpoint.info.step, config.trainer.num_steps
    accepted = f"expected at least the {step} steps of {checkpoint.folder}; use resume=never to start anew"
    require(step <= num_steps, "trainer.num_steps", num_steps, accepted)
    same = checkpoint.info.counters.get("data_digest") == digest
    accepted = f"the tokens there are not those of {checkpoint.folder}; use resume=never to start anew"
    require(same, "data.root", config.data.root, accepted)
    metrics, length = _metrics_beside(checkpoint), checkpoint.info.counters["metrics_bytes"]
    size = metrics.stat().st_size if metrics.exists() else 0
    accepted = f"{metrics} has {size} bytes and {checkpoint.folder} goes on after {length}; use never to start anew"
    require(size >= length, "resume", config.resume, accepted)


def _checkpoint_of_another_run(source: Path) -> Checkpoint:
    """The checkpoint at ``source``, a run folder or one of its checkpoints. Raises ConfigError."""
    try:
        if step_of(source.resolve()) is None:
            checkpoint = newest_valid(source / CHECKPOINTS_FOLDER, warn)
        else:
            checkpoint = Checkpoint.open(source.resolve())
            checkpoint.verify()
    except CheckpointDamaged as damage:
        raise ConfigError("resume", source, f"expected a whole checkpoint: {damage}") from None
    if checkpoint is None:
        raise ConfigError("resume", source, "expected auto, never, or a run folder or checkpoint to go on from")
    return checkpoint


def _metrics_beside(checkpoint: Checkpoint) -> Path:
    """The metrics of the run that ``checkpoint`` is of."""
    return checkpoint.folder.parents[1] / records.METRICS_FILE


def _copy_metrics(checkpoint: Checkpoint, folder: Path) -> None:
    """Another run's metrics, up to its checkpoint, become the first of the run in ``folder``."""
    rows = _metrics_beside(checkpoint).read_bytes()[: checkpoint.info.counters["metrics_bytes"]]
    records.write_atomically(folder / records.METRICS_FILE, rows)


def load(config: Config, states: Sequence[PartState], start: Start) -> None:
    """Bring ``states`` to ``start``. Raises ConfigError and CheckpointDamaged as load_state does."""
    if start.folder is not None:
        load_state(states, [info.name for info in parameter_infos(config.model)], Checkpoint.open(start.folder))


def _say_nothing(line: str) -> None:
    pass


class Saver:
    """Saves a rank's part of a run's state. A context manager, and a Watcher of the rank's actions.

    Raises nothing while training: a checkpoint that can't be written is a warning, and the last good one stays.
    """

    def __init__(self, config: Config, folder: Path, start: Start, rank: int = 0) -> None:
        self._config = config
        self._data_digest = start.data_digest
        self._names = [info.name for info in parameter_infos(config.model)]
        num_ranks = config.pipeline.num_processes
        root = folder / CHECKPOINTS_FOLDER
        report = warn if rank == 0 else _say_nothing  # the first rank says what the others could not write, too
        self._writer = CheckpointWriter(root, config.trainer.checkpoint, rank, num_ranks, start.launch, report)
        self._last_step: int | None = start.step or None

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._writer.__exit__(kind, error, trace)

    def due(self, num_updates: int) -> bool:
        """Whether the state after ``num_updates`` is saved: every so often, and at the end."""
        every, last = self._config.trainer.checkpoint_every, self._config.trainer.num_steps
        return num_updates == last or (every is not None and num_updates % every == 0)

    def save(
        self,
        num_updates: int,
        states: Sequence[PartState],
        *,
        last_norms: Norms,
        skipped_in_a_row: int,
        metrics_bytes: int,
        val_loss: float | None,
    ) -> None:
        """Begin to save; every rank, after the same number of updates. What Start reads again is rank 0's.

        last_norms: of the batch before, where the next one is clipped by them. metrics_bytes: of the metrics file.
        val_loss: None where there was no validation after this update.
        """
        pipeline = self._config.pipeline
        counters = {
            "metrics_bytes": metrics_bytes,
            "skipped_in_a_row": skipped_in_a_row,
            "last_norms": {str(index): norm for index, norm in last_norms.items()},  # JSON has no other keys
            "data_digest": self._data_digest,
        }
        info = CheckpointInfo(
            num_updates,
            self._config.scientific(),
            counters,
            world={"pipeline": pipeline.name, "stages": pipeline.num_stages, "replicas": pipeline.data_parallel},
            val_loss=val_loss if val_loss is not None and math.isfinite(val_loss) else None,
        )
        self._writer.save(info, state_tensors(states, self._names))
        if any(state.correction.corrects_gradients for state in states):
            self._writer.wait_copied()  # the next batch's gradients change its state
        self._last_step = num_updates

    def before_update(self) -> None:
        """To be called before anything that was saved is changed."""
        self._writer.wait_copied()

    def begin(self, action: Action) -> None:
        if action.kind is UPDATE:
            self.before_update()

    def end(self, action: Action, start_s: float, end_s: float) -> None:
        pass

    def finish(self) -> int | None:
        """Wait until the last save is on the disk. Returns its step, or None where it is not."""
        try:
            self._writer.wait()
        except CheckpointFailed:  # it has been reported
            return None
        return self._last_step
