"""Run folders as one pandas frame, a row a run. What cannot be trusted is listed with its reason, never averaged.

usable      finished, with a finite validation loss, its records at one with each other, the first of its kind
passed over half-written, foreign, failed, not finite, contradicted by its own records or by another run of the same
            experiment, or a second one of it
refused     runs that differ in more than the axes that their table or figure compares

``read_runs`` reads a folder once; ``comparable`` makes the frame of some of its runs, and holds them to their axes.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from asyncpp.errors import require
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

# What the runs of Tables 1 and 2 may differ in. Delays are compared by the staleness that was measured. A table or
# figure that compares more adds sections ("model") or keys ("optimizer.betas") of the configuration.
AXES = ("optimizer", "delay", "correction", "seed")
# An optimizer's or a correction's own values may differ from another's, but not between its own runs.
SECTIONS = ("optimizer", "correction")
# How a delay comes about. Runs whose delays may differ may differ in it, too: a simulated pipeline and real processes
# give the same numbers to the last bit, and what a schedule did is measured.
DELAY_KEYS = ("pipeline.name", "pipeline.schedule")
# The delays that vary, for a summary without ``delay_varies``: runs that were made before there was that key, those of
# docs/results-tiny among them.
VARIED_DELAYS = ("pipedream", "from_schedule", "sampled")

TEXTS = ("model", "optimizer", "delay", "correction", "pipeline", "config_hash")
NUMBERS = ("seed", "num_steps", "tokens_seen", "val_loss", "staleness_updates")
WHOLE = ("seed", "num_steps", "tokens_seen")
OPTIONAL_TEXTS = ("commit", "sweep_name", "data_digest")  # null and absent are not known
OPTIONAL_NUMBERS = ("val_loss_z", "duration_s")
LARGEST_LOSS = 1e38  # nats per token: about the largest number of float32, in which losses are computed
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
DIGEST_DIGITS = 12  # of a data_digest in a message

# In the reason of a run that failed: "no finite gradient in 10 steps in a row", "the validation loss is {...: nan}".
DIVERGED = re.compile(r"^no finite gradient in |loss is .*\b(nan|inf)\b")

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)  # of a record that is not what it should be

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

    condition: what it would have counted as. reason: in the words of its summary.
    """

    sweep_name: str
    model: str
    optimizer: str
    condition: str
    seed: int
    folder: Path
    reason: str

    @property
    def diverged(self) -> bool:
        """Whether its gradients or its loss were not finite, by what the trainer writes of that. A run that was killed,
        ran out of disk or had bad input failed, too, but says nothing of what it was to try."""
        return DIVERGED.search(self.reason) is not None


@dataclass(frozen=True)
class LoadedRuns:
    """``frame``: a row a usable run, with the summary's fields, ``condition``, ``folder`` (a path), ``config`` (of
    read_config), and a column for each axis that is a key of the configuration (None where a run has no such key; lists
    as tuples)."""

    frame: pd.DataFrame
    passed_over: list[PassedOver]


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
    contradiction = _contradiction(rows, "one configuration and seed", names)
    if contradiction is not None:
        return [], [PassedOver(row["folder"], contradiction) for row in rows]
    first, *others = rows
    return [first], [PassedOver(row["folder"], f"duplicate of {names[0]}") for row in others]


def comparable(where: Path, rows: Sequence[dict[str, Any]], axes: Sequence[str] = AXES) -> LoadedRuns:
    """The frame of ``rows``, one run for each optimizer, condition, seed and value of the other axes.

    rows: of read_runs, one or more. axes: sections (``optimizer``, ``model``) and keys (``pipeline.num_stages``) of the
    configuration. Of the optimizer and the correction only the choice is one: their own values must agree where the
    choice does, unless they are named, too. where: what a refusal calls the folder.
    Raises ConfigError, which names the keys, where runs differ in more than the axes, or read other tokens; what a
    summary without ``data_digest`` has read is not known.
    """
    _refuse(where, _differences(rows, axes), f"one table compares {', '.join(axes)} only")
    keys = [axis for axis in axes if axis not in AXES]
    columns = [axis for axis in keys if axis not in TEXTS]  # the others are the summary's own
    placed = [row | {key: _value(row, key) for key in columns} for row in rows]
    kept, repeated = _one_run_a_cell(placed, keys)
    return LoadedRuns(pd.DataFrame(kept, columns=list(placed[0])), repeated)


def require_one_config(where: Path, frame: pd.DataFrame, axes: Sequence[str], x: pd.Series) -> None:
    """Raise ConfigError, which names the keys, where an optimizer's runs have two configurations at one ``x``.

    frame: of comparable, with ``axes``. x: the number that these stand for, by run; NaN where a run has none.
    """
    keys = [axis for axis in axes if axis not in AXES]
    for (optimizer, value), own in frame.groupby([frame["optimizer"], x]):
        configs = [{key: json.dumps(run[key]) for key in keys} for run in own.to_dict("records")]
        found = _differing_keys(configs, list(own["folder"]))
        told = (f"{difference}, as {folder.name} has it" for difference, folder in found)
        _refuse(where, told, f"{value:g} of {optimizer} is one point, which is one configuration")


def _refuse(where: Path, differences: Iterable[str], rule: str) -> None:
    told = "; ".join(differences)
    require(not told, "runs", where, f"its runs differ in {told}; {rule}: keep such runs in separate folders")


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


def is_finite(value: Any) -> bool:
    """Whether it is a number, and a finite one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _contradictions(summary: Mapping[str, Any], config: Mapping[str, str], folder: Path) -> Iterator[str]:
    """What the summary says and the configuration or the last validation denies, with both values.

    A key that the configuration lacks denies nothing, nor do metrics without a validation after the last step.
    """
    said: dict[str, Any] = {key: json.loads(value) for key, value in config.items() if key in _SAID}
    for key, own in SAID_TWICE.items():
        is_open = own == "delay.name" and said.get(own) == "auto"  # the summary says what it came to
        if own in said and said[own] != summary[key] and not is_open:
            yield f"{key} is {summary[key]} in {SUMMARY_FILE}, but {own} {said[own]} in {CONFIG_FILE}"
    tokens = math.prod(said[key] if is_finite(said.get(key)) else math.nan for key in TOKENS)
    if tokens != summary["tokens_seen"] and not math.isnan(tokens):
        product = f"{' x '.join(TOKENS)} {tokens}"
        yield f"tokens_seen is {summary['tokens_seen']} in {SUMMARY_FILE}, but {product} in {CONFIG_FILE}"
    # The mean of a run's second half, which is not late as a whole where the run is short, or starts in sync.
    staleness, half = summary["staleness_updates"], summary["num_steps"] // 2
    for told, updates in (
        (f"delay is {summary['delay']}", STALENESS_OF_DELAY.get(summary["delay"])),
        (f"delay.updates is {said.get('delay.updates')} in {CONFIG_FILE}", said.get("delay.updates")),
    ):
        may_be_less = summary["correction"] == SYNC_START or (is_finite(updates) and updates > half)
        if is_finite(updates) and not (staleness == updates or (may_be_less and staleness < updates)):
            yield f"{told}, but the measured staleness {staleness:g}"
    last = _last_validation(folder)
    if last.get("step") == summary["num_steps"]:
        for key, own in (("val_loss", "val/loss"), ("val_loss_z", "val/loss_z")):
            if own in last and last[own] != summary.get(key):
                yield f"{key} is {summary.get(key)} in {SUMMARY_FILE}, but {own} {last[own]} in {METRICS_FILE}"


def _last_validation(folder: Path) -> dict[str, Any]:
    """The last row with a validation; empty where there is none that can be read, as whatever needs one says."""
    try:
        row = last_metrics_row(folder / METRICS_FILE, "val/loss")
    except UNREADABLE:
        return {}
    return row if isinstance(row, dict) else {}


_SAID = {*SAID_TWICE.values(), *TOKENS, "delay.updates"}


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
    reason = str(summary.get("error") or f"val_loss is {loss}")
    try:
        staleness = STALENESS_OF_DELAY.get(summary["delay"], math.nan)
        name = _condition(summary, staleness)
        sweep = str(summary.get("sweep_name") or run.folder.parent.name)
        names = (sweep, summary["model"], summary["optimizer"], name)
        yield FailedRun(*names, int(summary["seed"]), run.folder, reason)
    except (KeyError, TypeError, ValueError):
        return


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


def _differences(rows: Sequence[dict[str, Any]], axes: Sequence[str]) -> Iterator[str]:
    """The keys, with values, numbers of runs and a folder of the rarest, in which runs differ that must not."""
    free = {*axes, *(DELAY_KEYS if "delay" in axes else ())}
    configs = [{key: value for key, value in row["config"].items() if key not in free} for row in rows]
    sections = [axis for axis in axes if "." not in axis]
    folders = [row["folder"] for row in rows]
    for difference, folder in _differing_keys([_without(config, sections) for config in configs], folders):
        yield f"{difference}, as {folder.name} has it"
    for section in SECTIONS:
        for name in dict.fromkeys(row[section] for row in rows):
            places = [place for place, row in enumerate(rows) if row[section] == name]
            own = [
                {key: value for key, value in configs[place].items() if key.partition(".")[0] == section}
                for place in places
            ]
            for difference, folder in _differing_keys(own, [folders[place] for place in places]):
                yield f"{difference} of {section}={name}, as {folder.name} has it"
    known = [row for row in rows if row["data_digest"] is not None]
    digests = [{"data_digest": row["data_digest"][:DIGEST_DIGITS]} for row in known]
    for difference, folder in _differing_keys(digests, [row["folder"] for row in known]):
        yield f"{difference}, as {folder.name} has it"


def _differing_keys(configs: list[dict[str, str]], folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Each key with its values and how many have them, and the first folder that has the rarest."""
    for key in dict.fromkeys(key for config in configs for key in config):
        values = [config.get(key, "absent") for config in configs]
        counts = Counter(values)
        if len(counts) > 1:
            told = ", ".join(f"{value} in {n} run{'s' if n > 1 else ''}" for value, n in counts.items())
            rarest = min(counts, key=lambda value: counts[value])
            yield f"{key} ({told})", folders[values.index(rarest)]


def _one_run_a_cell(rows: list[dict[str, Any]], keys: Sequence[str]) -> tuple[list[dict[str, Any]], list[PassedOver]]:
    """One run for each optimizer, condition, seed and value of ``keys``: of several, one without a correction before
    the first one. None where their losses are not the same: nothing says which is wrong."""
    cells: dict[Hashable, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["correction"] != "none"):
        cells[row["optimizer"], row["condition"], row["seed"], *(row[key] for key in keys)].append(row)
    kept, repeated = [], []
    for own in cells.values():
        first, *others = own
        what = f"{first['condition']} of {first['optimizer']}, seed {first['seed']}"
        contradiction = _contradiction(own, what, [row["folder"].name for row in own])
        if contradiction is None:
            kept.append(first)
            reason = f"{what} is counted once, from {first['folder'].name}"
            repeated += [PassedOver(row["folder"], reason) for row in others]
        else:
            repeated += [PassedOver(row["folder"], contradiction) for row in own]
    return sorted(kept, key=lambda row: row["folder"]), repeated


def _contradiction(rows: Sequence[dict[str, Any]], what: str, names: Iterable[Any]) -> str | None:
    """Why no run of one experiment counts, where their losses are not the same."""
    if all(row["val_loss"] == rows[0]["val_loss"] for row in rows):
        return None
    told = " and ".join(f"{row['val_loss']:.10g} ({name})" for row, name in zip(rows, names, strict=True))
    return f"contradiction: {what} with val_loss {told}; keep the one that is right"


def _without(config: Mapping[str, str], sections: Sequence[str]) -> dict[str, str]:
    return {key: value for key, value in config.items() if key.partition(".")[0] not in sections}


def _value(row: Mapping[str, Any], key: str) -> Hashable:
    """The value of a key of the configuration; None where there is no such key, a tuple for a list."""
    value = json.loads(row["config"].get(key, "null"))
    return tuple(value) if isinstance(value, list) else value


def _folders_without_config(runs_dir: Path) -> list[Path]:
    folders = folders_with(runs_dir, SUMMARY_FILE, METRICS_FILE)
    return [folder for folder in folders if not (folder / CONFIG_FILE).is_file()]


def _examples(passed_over: list[PassedOver], runs_dir: Path) -> str:
    shown = [f"{entry.folder.relative_to(runs_dir)}: {entry.reason}" for entry in passed_over[:3]]
    return f"; passed over {len(passed_over)} ({'; '.join(shown)})" if shown else ""
