"""Run folders as rows. What cannot be trusted is listed with its reason, never averaged.

usable      finished, with a finite validation loss, its records at one with each other, the first of its kind
passed over half-written, foreign, failed, not finite, contradicted by its own records or by another run of the same
            experiment, or a second one of it

comparable_runs.py makes frames of those that are usable, and refuses runs that differ in more than is compared.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from asyncpp.errors import ConfigError, require
from asyncpp.records import (
    BOOKKEEPING_KEYS,
    CONFIG_FILE,
    METRICS_FILE,
    SUMMARY_FILE,
    Run,
    Status,
    find_runs,
    flattened,
    folders_with,
    last_metrics_row,
)
from asyncpp.schedule.staleness import steady_staleness

# The delays that vary, for a summary without ``delay_varies``: runs that were made before there was that key, those of
# docs/results-tiny among them.
VARIED_DELAYS = ("pipedream", "from_schedule", "sampled")

TEXTS = ("model", "optimizer", "delay", "correction", "pipeline", "config_hash")
NUMBERS = ("seed", "num_steps", "tokens_seen", "val_loss", "staleness_updates")
WHOLE = ("seed", "num_steps", "tokens_seen")
OPTIONAL_TEXTS = ("commit", "sweep_name", "data_digest")  # null and absent are not known
OPTIONAL_NUMBERS = ("val_loss_z", "duration_s")
LARGEST_LOSS = 1e38  # nats per token: about the largest number of float32, in which losses are computed
NAMES = ("model", "optimizer", "delay", "correction")  # of what a run was to try
NEEDED = ("model", "data", "optimizer", "delay", "correction", "trainer", "seed")  # of a configuration
STALENESS_OF_DELAY = {"sync": 0, "one_step": 1}
SYNC_START = "sync_start"  # the correction that begins without the delay
# What the summary and the configuration both say, by their keys.
SAID_TWICE = {
    "model": "model.name",
    "optimizer": "optimizer.name",
    "delay": "delay.name",
    "correction": "correction.name",
    "pipeline": "pipeline.name",
    "seed": "seed",
    "num_steps": "trainer.num_steps",
}
TOKENS = ("trainer.num_steps", "trainer.batch_size", "data.sequence_length")  # whose product a run has seen

# The whole reason of a run that diverged: both texts of asyncpp.trainer.loop, and a summary's own loss (of _failed).
DIVERGED = re.compile(
    r"no finite gradient in \d+ steps in a row, the last at step \d+ "
    r"\(trainer\.max_skipped_steps=\d+\); try a smaller optimizer\.lr"
    r"|the validation loss is \{'val/loss[^{}]*: -?(nan|inf)\b[^{}]*\} after \d+ updates"
    r"|val_loss is -?(nan|inf)"
)

# Of a record that is not what it should be; RecursionError: of brackets within brackets.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where it is there: 1,000 configs in a second


@dataclass(frozen=True)
class PassedOver:
    """A folder that no table counts, and why."""

    folder: Path
    reason: str

    def as_dict(self) -> dict[str, str]:
        """Plain values, ready for JSON."""
        return {"folder": str(self.folder), "reason": self.reason}


@dataclass(frozen=True)
class FailedRun:
    """A run that ended without a result, by divergence or an error: a result itself, though in no mean.

    condition: what it would have counted as. reason: in the words of its summary. data_digest: None where not known.
    """

    sweep_name: str
    model: str
    optimizer: str
    condition: str
    seed: int
    folder: Path
    reason: str
    data_digest: str | None = None

    @property
    def diverged(self) -> bool:
        """Whether its gradients or its loss were not finite, by what the trainer writes of that. A run that was killed,
        ran out of disk or had bad input failed, too, but says nothing of what it was to try."""
        return DIVERGED.fullmatch(self.reason) is not None


@dataclass(frozen=True)
class ReadRuns:
    """Every usable run below ``runs_dir``, in order of their paths, its configuration included.

    failed: those of the runs that were passed over that say which experiment they failed at.
    """

    runs_dir: Path
    rows: list[dict[str, Any]]
    passed_over: list[PassedOver]
    failed: list[FailedRun]


class UnusableRun(Exception):
    """Why one run cannot be counted."""


def read_runs(runs_dir: Path) -> ReadRuns:
    """Read every run folder below ``runs_dir``. Raises ConfigError where there is no usable run.

    A run is a duplicate where an earlier one has its sweep, configuration and seed: one experiment of two sweeps may
    stand in the folders of both. Where two of them have different losses, neither counts: nothing says which is wrong.
    """
    require(runs_dir.is_dir(), "runs", runs_dir, "expected a folder that holds run folders")
    passed_over = [PassedOver(folder, f"no {CONFIG_FILE}") for folder in _folders_without_config(runs_dir)]
    copies: dict[Hashable, list[dict[str, Any]]] = defaultdict(list)
    failed = []
    for run in find_runs(runs_dir):
        try:
            row = _read(run)
            copies[row["sweep_name"], row["config_hash"], row["seed"]].append(row)
        except UnusableRun as reason:
            passed_over.append(PassedOver(run.folder, str(reason)))
            failed += _failed(run)
    rows = []
    for own in copies.values():
        kept, left_out = _one_of(own, runs_dir)
        rows += kept
        passed_over += left_out
    require(bool(rows), "runs", runs_dir, f"expected at least one finished run{_examples(passed_over, runs_dir)}")
    return ReadRuns(runs_dir, rows, passed_over, failed)


def _one_of(rows: list[dict[str, Any]], runs_dir: Path) -> tuple[list[dict[str, Any]], list[PassedOver]]:
    """The first of the runs of one configuration and seed, or none where their losses are not the same."""
    names = [row["folder"].relative_to(runs_dir) for row in rows]
    contradiction = contradiction_of(rows, "one configuration and seed", names)
    if contradiction is not None:
        return [], [PassedOver(row["folder"], contradiction) for row in rows]
    first, *others = rows
    return [first], [PassedOver(row["folder"], f"duplicate of {names[0]}") for row in others]


def condition(staleness_updates: float, correction: str, varied_delay: str | None = None) -> str:
    """What was done with the delay: ``sync``, ``async``, ``async_ef``, ``async_<correction>``, ``staleness_2``, ...

    staleness_updates: the largest of any stage. varied_delay: the name of a delay that differs from stage to stage or
    from batch to batch, which no number of updates says; the run goes by it, unless nothing was late.
    Error feedback changes nothing where nothing is late, so that sync with it is ``sync``.
    """
    name = {0.0: "sync", 1.0: "async"}.get(staleness_updates, f"staleness_{staleness_updates:g}")
    if varied_delay is not None and name != "sync":
        name = varied_delay
    if correction == "none" or (name == "sync" and correction == "ef"):
        return name
    return f"{name}_{correction}"


def _read(run: Run) -> dict[str, Any]:
    """The row of one run. Raises UnusableRun."""
    summary = _finished_summary(run)
    _require_values(summary)
    config = read_config(run.folder / CONFIG_FILE)
    contradiction = next(_contradictions(summary, config, run.folder), None)
    if contradiction is not None:
        raise UnusableRun(f"contradiction: {contradiction}")
    row = {key: summary.get(key) for key in (*TEXTS, *NUMBERS, *OPTIONAL_TEXTS, *OPTIONAL_NUMBERS)}
    row["sweep_name"] = row["sweep_name"] or run.folder.parent.name
    row["condition"] = _condition(summary, summary["staleness_updates"])
    row["folder"] = run.folder
    row["config"] = config
    return row


def _finished_summary(run: Run) -> dict[str, Any]:
    """Raises UnusableRun where the run has not finished, or its summary is not one of ours."""
    summary = run.summary
    if summary is None:
        there = (run.folder / SUMMARY_FILE).exists()
        raise UnusableRun(f"{SUMMARY_FILE} cannot be read" if there else f"not finished: no {SUMMARY_FILE}")
    if "status" not in summary:
        raise UnusableRun(f"foreign: {SUMMARY_FILE} has no status")
    if summary["status"] != Status.FINISHED:
        raise UnusableRun(": ".join(str(summary[key]) for key in ("status", "error") if summary.get(key)))
    missing = [key for key in (*TEXTS, *NUMBERS) if key not in summary]
    if missing:
        raise UnusableRun(f"foreign: {SUMMARY_FILE} has no {', '.join(missing)}")
    return summary


def _require_values(summary: Mapping[str, Any]) -> None:
    """Raise UnusableRun where a value is not of its kind."""
    for key in (*TEXTS, *OPTIONAL_TEXTS):
        value = summary.get(key)
        if not isinstance(value, str) and (key in TEXTS or value is not None):
            raise UnusableRun(f"foreign: {key} is {value!r}, not a text")
    for key in (*NUMBERS, *OPTIONAL_NUMBERS):
        value = summary.get(key)
        if not is_finite(value) and (key in NUMBERS or value is not None):
            raise UnusableRun(f"{key} is {value}, not a finite number")
    for key in WHOLE:
        if not isinstance(summary[key], int):
            raise UnusableRun(f"{key} is {summary[key]}, not a whole number")
    for key in ("val_loss", "val_loss_z"):
        if not 0.0 <= (summary.get(key) or 0.0) <= LARGEST_LOSS:
            raise UnusableRun(f"{key} is {summary[key]:g}, not a loss in nats per token")


def is_finite(value: Any) -> bool:
    """Whether it is a number, and a finite one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _contradictions(summary: Mapping[str, Any], config: Mapping[str, str], folder: Path) -> Iterator[str]:
    """What the summary says and the configuration or the last validation denies, with both values.

    A key that the configuration lacks denies nothing, nor do metrics without a validation after the last step.
    """
    yield from _denied(summary, config)
    tokens = planned_tokens(config)
    if tokens != summary["tokens_seen"] and not math.isnan(tokens):
        product = f"{' x '.join(TOKENS)} {tokens}"
        yield f"tokens_seen is {summary['tokens_seen']} in {SUMMARY_FILE}, but {product} in {CONFIG_FILE}"
    # The mean of a run's second half, which is not late as a whole where the run is short, or starts in sync.
    staleness, half = summary["staleness_updates"], summary["num_steps"] // 2
    configured = json.loads(config.get("delay.updates", "null"))
    for told, updates in (
        (f"delay is {summary['delay']}", STALENESS_OF_DELAY.get(summary["delay"])),
        (f"delay.updates is {configured} in {CONFIG_FILE}", configured),
    ):
        may_be_less = summary["correction"] == SYNC_START or (is_finite(updates) and updates > half)
        if is_finite(updates) and not (staleness == updates or (may_be_less and staleness < updates)):
            yield f"{told}, but the measured staleness {staleness:g}"
    last = _last_validation(folder)
    if last.get("step") == summary["num_steps"]:
        for key, own in (("val_loss", "val/loss"), ("val_loss_z", "val/loss_z")):
            if own in last and last[own] != summary.get(key):
                yield f"{key} is {summary.get(key)} in {SUMMARY_FILE}, but {own} {last[own]} in {METRICS_FILE}"


def _denied(summary: Mapping[str, Any], config: Mapping[str, str]) -> Iterator[str]:
    """Of what both say by a key of their own, where they differ."""
    for key, own in SAID_TWICE.items():
        if key in summary and own in config:
            said = json.loads(config[own])
            is_open = own == "delay.name" and said == "auto"  # the summary says what it came to
            if said != summary[key] and not is_open:
                yield f"{key} is {summary[key]} in {SUMMARY_FILE}, but {own} {said} in {CONFIG_FILE}"


def planned_tokens(config: Mapping[str, str]) -> float:
    """The training tokens that a run of ``config`` (of read_config) reads; NaN where it does not say."""
    values = [json.loads(config.get(key, "null")) for key in TOKENS]
    return math.prod(value if is_finite(value) else math.nan for value in values)


def _last_validation(folder: Path) -> dict[str, Any]:
    """The last row with a validation; empty where there is none that can be read, as whatever needs one says."""
    try:
        row = last_metrics_row(folder / METRICS_FILE, "val/loss")
    except UNREADABLE:
        return {}
    return row if isinstance(row, dict) else {}


def _condition(summary: Mapping[str, Any], staleness_updates: float) -> str:
    delay = summary["delay"]
    varies = summary.get("delay_varies", delay in VARIED_DELAYS)
    return condition(staleness_updates, summary["correction"], delay if varies else None)


def _failed(run: Run) -> Iterator[FailedRun]:
    """The run, if it failed or has no finite loss, and its summary says what it was to be."""
    summary = run.summary or {}
    loss = summary.get("val_loss")
    has_ended = summary.get("status") in (Status.FAILED, Status.FINISHED)
    if not has_ended or (summary["status"] == Status.FINISHED and is_finite(loss)):
        return
    sweep, digest, seed = summary.get("sweep_name"), summary.get("data_digest"), summary.get("seed")
    names = [summary.get(key) for key in NAMES]
    is_named = all(isinstance(name, str) for name in (*names, sweep or "", digest or ""))
    if not (is_named and is_finite(seed) and isinstance(seed, int)):
        return
    try:
        config = read_config(run.folder / CONFIG_FILE)
    except UnusableRun:
        config = {}  # it is named as what failed all the same
    if any(_denied(summary, config)):
        return
    yield FailedRun(
        sweep_name=sweep or run.folder.parent.name,
        model=summary["model"],
        optimizer=summary["optimizer"],
        condition=_condition(summary, _planned_staleness(summary["delay"], config)),
        seed=seed,
        folder=run.folder,
        reason=str(summary.get("error") or f"val_loss is {loss}"),
        data_digest=digest or None,
    )


def _planned_staleness(delay: str, config: Mapping[str, str]) -> float:
    """The largest of any stage, in updates, as training takes it from ``config`` (of read_config); where that does not
    say, by the delay's name. NaN where neither does."""
    updates, schedule, num_stages, num_chunks = (
        json.loads(config.get(key, "null"))
        for key in ("delay.updates", "delay.schedule", "pipeline.num_stages", "pipeline.num_chunks")
    )
    if is_finite(updates):
        return updates
    has_shape = isinstance(num_stages, int) and num_stages >= 1 and isinstance(num_chunks, int | None)
    if isinstance(schedule, str) and has_shape:
        return _largest_delay(schedule, num_stages, num_chunks)
    return STALENESS_OF_DELAY.get(delay, math.nan)


@cache
def _largest_delay(schedule: str, num_stages: int, num_chunks: int | None) -> float:
    """Of any part of the model, in updates, once the pipeline is full; NaN for a pipeline that there cannot be."""
    try:
        # It does not depend on the number of micro-batches, and as many as stages suffice for every schedule.
        return max(steady_staleness(schedule, num_stages, num_stages, num_chunks))
    except ConfigError:
        return math.nan


def read_config(path: Path) -> dict[str, str]:
    """The resolved configuration as dotted keys and JSON texts, without bookkeeping. Raises UnusableRun."""
    try:
        config = yaml.load(path.read_bytes(), Loader=_Loader)  # _Loader is a safe one
    except (OSError, ValueError, yaml.YAMLError):
        raise UnusableRun(f"{CONFIG_FILE} cannot be read") from None
    if not isinstance(config, dict):
        raise UnusableRun(f"foreign: {CONFIG_FILE} holds no configuration")
    missing = [key for key in NEEDED if key not in config]
    if missing:
        raise UnusableRun(f"half-written or foreign: {CONFIG_FILE} has no {', '.join(missing)}")
    return {
        key: json.dumps(value, default=str)
        for key, value in flattened(config)
        if not any(key == name or key.startswith(f"{name}.") for name in BOOKKEEPING_KEYS)
    }


def contradiction_of(rows: Sequence[dict[str, Any]], what: str, names: Iterable[Any]) -> str | None:
    """Why no run of one experiment counts, where their losses are not the same."""
    if all(row["val_loss"] == rows[0]["val_loss"] for row in rows):
        return None
    told = " and ".join(f"{row['val_loss']:.10g} ({name})" for row, name in zip(rows, names, strict=True))
    return f"contradiction: {what} with val_loss {told}; keep the one that is right"


def _folders_without_config(runs_dir: Path) -> list[Path]:
    folders = folders_with(runs_dir, SUMMARY_FILE, METRICS_FILE)
    return [folder for folder in folders if not (folder / CONFIG_FILE).is_file()]


def _examples(passed_over: list[PassedOver], runs_dir: Path) -> str:
    shown = [f"{entry.folder.relative_to(runs_dir)}: {entry.reason}" for entry in passed_over[:3]]
    return f"; passed over {len(passed_over)} ({'; '.join(shown)})" if shown else ""
