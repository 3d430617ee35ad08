"""Where the runs of a report come from: sweeps, seeds, configurations, commits, versions and machines."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd

from asyncpp.records import ENVIRONMENT_FILE, commit
from experiments import Experiments

COMMIT_DIGITS = 10
PACKAGES = ("numpy", "pandas", "scipy", "matplotlib")
MACHINE_KEYS = ("python", "platform", "processor", "num_cpus")


@dataclass(frozen=True)
class SweepProvenance:
    """Plain texts, ready to be printed.

    common: the configuration that all its runs share, a key a line. varied: the keys in which they differ.
    runs: ``name varied val_loss commit`` of each, with varied aligned with the keys.
    """

    name: str
    num_runs: int
    seeds: str
    models: str
    num_steps: str
    tokens: str
    hours: str
    commits: str
    common: str
    varied: list[str]
    runs: list[dict[str, Any]]


def all_runs(experiments: Experiments) -> pd.DataFrame:
    """Every run that some experiment counts, once."""
    frames = [frame for scales in experiments.frames.values() for frame in scales.values()]
    return pd.concat(frames, ignore_index=True).drop_duplicates("folder").sort_values("folder", ignore_index=True)


def sweeps(runs: pd.DataFrame) -> list[SweepProvenance]:
    """One entry a sweep, by name."""
    return [_sweep(str(name), own) for name, own in runs.groupby("sweep_name", sort=True)]


def versions(folders: Iterable[Path]) -> dict[str, str]:
    """What the runs were made with, by name: every value that occurs, with how many runs where there are several."""
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for folder in folders:
        environment = _environment(folder)
        packages = environment.get("packages")
        found = {key: environment.get(key, "not recorded") for key in MACHINE_KEYS}
        found |= packages if isinstance(packages, dict) else {}
        for key, value in found.items():
            values[key][str(value)] += 1
    return {name: _counted(counter) for name, counter in values.items()}


def analysis() -> dict[str, str]:
    """What the report itself is made with, by name."""
    return {"commit": _short(commit())} | {name: metadata.version(name) for name in PACKAGES}


def _sweep(name: str, runs: pd.DataFrame) -> SweepProvenance:
    configs = list(runs["config"])
    keys = list(dict.fromkeys(key for config in configs for key in config))
    values = {key: {config.get(key, "absent") for config in configs} for key in keys}
    varied = [key for key in keys if len(values[key]) > 1]
    lines = [
        {
            "name": run["folder"].name,
            "varied": [config.get(key, "") for key in varied],
            "val_loss": f"{run['val_loss']:.4f}",
            "commit": _short(run["commit"]),
        }
        for run, config in zip(runs.to_dict("records"), configs, strict=True)
    ]
    durations = pd.to_numeric(runs["duration_s"])
    return SweepProvenance(
        name=name,
        num_runs=len(runs),
        seeds=_distinct(runs["seed"]),
        models=_distinct(runs["model"]),
        num_steps=_distinct(runs["num_steps"]),
        tokens=_distinct(f"{tokens:,.0f}" for tokens in sorted(runs["tokens_seen"])),
        hours=f"{durations.sum() / 3600:.2f}" if durations.notna().all() else "not recorded",
        commits=_distinct(_short(commit) for commit in runs["commit"]),
        common="\n".join(f"{key} = {next(iter(values[key]))}" for key in keys if key not in varied),
        varied=varied,
        runs=lines,
    )


def _environment(folder: Path) -> Mapping[str, Any]:
    """Empty where there is none that can be read: a run counts without."""
    try:
        environment = json.loads((folder / ENVIRONMENT_FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return environment if isinstance(environment, dict) else {}


def _short(commit: str | None) -> str:
    """A commit's first digits; the mark of a tree with changes stays."""
    if not commit:
        return "not recorded"
    digits, dash, mark = commit.partition("-")
    return digits[:COMMIT_DIGITS] + dash + mark


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))


def _counted(counter: Counter[str]) -> str:
    if len(counter) == 1:
        return next(iter(counter))
    return ", ".join(f"{value} ({count} runs)" for value, count in sorted(counter.items()))
