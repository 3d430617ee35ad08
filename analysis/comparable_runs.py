"""Runs that may be compared, as one pandas frame, a row a run: held to the axes of their table, figure or claim.

Refused are runs that differ in more than the axes, of other tokens, and of two configurations at one point of an axis.
Left out is a second run of one cell, and every run of a cell that has several losses.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from asyncpp.errors import require
from runs import TEXTS, PassedOver, contradiction_of

# What the runs of Tables 1 and 2 may differ in. Delays are compared by the staleness that was measured. A table or
# figure that compares more adds sections ("model") or keys ("optimizer.betas") of the configuration.
AXES = ("optimizer", "delay", "correction", "seed")
# An optimizer's or a correction's own values may differ from another's, but not between its own runs.
SECTIONS = ("optimizer", "correction")
# How a delay comes about. Runs whose delays may differ may differ in it, too: a simulated pipeline and real processes
# give the same numbers to the last bit, and what a schedule did is measured.
DELAY_KEYS = ("pipeline.name", "pipeline.schedule")
# The keys of a pipeline that can change a number; the others are how its processes go about it (asyncpp.config.Config
# .scientific leaves them out of a run's hash, too).
PIPELINE_KEYS = (*DELAY_KEYS, "pipeline.num_stages", "pipeline.data_parallel", "pipeline.split")
DIGEST_DIGITS = 12  # of a data_digest in a message


@dataclass(frozen=True)
class LoadedRuns:
    """``frame``: a row a usable run, with the summary's fields, ``condition``, ``folder`` (a path), ``config`` (of
    read_config), and a column for each axis that is a key of the configuration (None where a run has no such key; lists
    as tuples)."""

    frame: pd.DataFrame
    passed_over: list[PassedOver]


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


def _differences(rows: Sequence[dict[str, Any]], axes: Sequence[str]) -> Iterator[str]:
    """The keys, with values, numbers of runs and a folder of the rarest, in which runs differ that must not."""
    free = {*axes, *(DELAY_KEYS if "delay" in axes else ())}
    configs = [{key: value for key, value in row["config"].items() if key not in free and _counts(key)} for row in rows]
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


def _counts(key: str) -> bool:
    return not key.startswith("pipeline.") or key in PIPELINE_KEYS


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
        contradiction = contradiction_of(own, what, [row["folder"].name for row in own])
        if contradiction is None:
            kept.append(first)
            reason = f"{what} is counted once, from {first['folder'].name}"
            repeated += [PassedOver(row["folder"], reason) for row in others]
        else:
            repeated += [PassedOver(row["folder"], contradiction) for row in own]
    return sorted(kept, key=lambda row: row["folder"]), repeated


def _without(config: Mapping[str, str], sections: Sequence[str]) -> dict[str, str]:
    return {key: value for key, value in config.items() if key.partition(".")[0] not in sections}


def _value(row: Mapping[str, Any], key: str) -> Hashable:
    """The value of a key of the configuration; None where there is no such key, a tuple for a list."""
    value = json.loads(row["config"].get(key, "null"))
    return tuple(value) if isinstance(value, list) else value
