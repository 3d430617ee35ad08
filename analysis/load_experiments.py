"""The runs below a folder, by the experiment and scale that they belong to, and what counts nowhere.

A run says in its summary which sweep it belongs to. So ``runs=runs`` finds every experiment below one folder, and
``runs=runs/demo`` the one that is there.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from asyncpp.errors import require
from asyncpp.records import CONFIG_FILE
from comparable_runs import AXES, comparable, require_one_config
from experiments import EXPERIMENTS, Experiment, Experiments
from runs import FailedRun, PassedOver, UnusableRun, read_config, read_runs
from scores import unreadable_scores

EF_FILE = Path(__file__).parents[1] / "conf" / "correction" / "ef.yaml"
STRENGTH = "correction.strength"
# What stands for Tables 1 and 2 where their own sweeps have no runs, and no table otherwise.
DEMO = "demo"

Frames = dict[str, dict[str, pd.DataFrame]]  # by experiment and scale


def load_experiments(runs_dir: Path, scale: str | None = None) -> Experiments:
    """Every experiment that has usable runs below ``runs_dir``.

    scale: leave out all runs of other models. A sweep that is in no experiment stands for Tables 1 and 2 where it is
    the only one that is there; of several, ``demo`` does.
    Raises ConfigError where there is no usable run of any experiment or of ``scale``, and where the runs of one
    experiment differ in more than its axes, or at one place on its axis.
    """
    read = read_runs(runs_dir)
    rows = _of_scale(read.rows, scale)
    sweeps_of = _sweeps(rows)
    over_strength = {sweep for name, sweeps in sweeps_of.items() if _is_over_strength(name) for sweep in sweeps}
    rows = [row if row["sweep_name"] in over_strength else _at_strength(row) for row in rows]
    frames, not_compared = _comparable_frames(runs_dir, rows, sweeps_of)
    _require_any(runs_dir, frames, rows)
    frames, repeated = _one_of_all_equal_seeds(frames)
    failed = _failed_by_experiment([run for run in read.failed if scale in (None, run.model)], sweeps_of)
    of_nothing = [*_of_no_experiment(rows, sweeps_of), *_of_no_condition(rows, sweeps_of), *unreadable_scores(rows)]
    passed_over = dict.fromkeys([*read.passed_over, *of_nothing, *not_compared, *repeated])  # of two experiments: once
    models = list(dict.fromkeys(row["model"] for row in rows))
    return Experiments(frames, models, sorted(passed_over, key=lambda entry: entry.folder), failed)


def _of_scale(rows: Sequence[dict[str, Any]], scale: str | None) -> list[dict[str, Any]]:
    """The runs of the model ``scale``, or all of them. Raises ConfigError where there is none."""
    models = ", ".join(sorted({row["model"] for row in rows}))
    own = [row for row in rows if scale in (None, row["model"])]
    require(bool(own), "scale", scale, f"expected one of {models}, of which there are finished runs")
    return own


def _sweeps(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The sweeps that each experiment takes its runs from, here."""
    sweeps_of = {name: experiment.sweeps for name, experiment in EXPERIMENTS.items()}
    there = {row["sweep_name"] for row in rows}
    if not there & set(sweeps_of["optimizers"]):
        known = {sweep for sweeps in sweeps_of.values() for sweep in sweeps}
        if DEMO in there:
            sweeps_of["optimizers"] = (DEMO,)
        elif len(there) == 1 and not there & known:
            sweeps_of["optimizers"] = tuple(there)
    return sweeps_of


def _comparable_frames(
    runs_dir: Path, rows: Sequence[dict[str, Any]], sweeps_of: Mapping[str, tuple[str, ...]]
) -> tuple[Frames, list[PassedOver]]:
    """The runs of each experiment and scale, held to its axes, and those of them that are not compared."""
    frames: Frames = {name: {} for name in EXPERIMENTS}
    passed_over: list[PassedOver] = []
    for name, experiment in EXPERIMENTS.items():
        own = [row for row in rows if row["sweep_name"] in sweeps_of[name]]
        for model in dict.fromkeys(row["model"] for row in own):
            loaded = comparable(runs_dir, [row for row in own if row["model"] == model], experiment.axes)
            passed_over += loaded.passed_over
            if not loaded.frame.empty:
                require_one_point_each(runs_dir, loaded.frame, experiment)
                frames[name][model] = loaded.frame
    return frames, passed_over


def require_one_point_each(runs_dir: Path, frame: pd.DataFrame, experiment: Experiment) -> None:
    """Raise ConfigError where two configurations are one point of the experiment's ``x``, and where runs that must
    have seen as many tokens have not."""
    if experiment.x:
        require_one_config(runs_dir, frame, experiment.axes, experiment.x(frame))
    if experiment.equal_tokens:
        _require_equal_tokens(runs_dir, frame)


def _require_equal_tokens(runs_dir: Path, frame: pd.DataFrame) -> None:
    """Batches of other sizes end at other multiples: a batch more or less is equal."""
    by_tokens = frame.sort_values("tokens_seen")
    fewest, most = by_tokens.iloc[0], by_tokens.iloc[-1]
    sizes = " and ".join(f"{run['tokens_seen']:,} tokens ({run['folder'].name})" for run in (fewest, most))
    accepted = f"expected as many tokens for every batch size, trainer.batch_size x trainer.num_steps; found {sizes}"
    largest_batch = (frame["tokens_seen"] / frame["num_steps"]).max()
    require(most["tokens_seen"] - fewest["tokens_seen"] <= largest_batch, "runs", runs_dir, accepted)


def _require_any(runs_dir: Path, frames: Frames, rows: Sequence[dict[str, Any]]) -> None:
    """Raise ConfigError where no experiment has runs."""
    found = ", ".join(sorted({row["sweep_name"] for row in rows}))
    known = ", ".join(sweep for experiment in EXPERIMENTS.values() for sweep in experiment.sweeps)
    accepted = f"expected runs of one of the sweeps {known}, or of one sweep alone; found {found}"
    require(any(frames.values()), "runs", runs_dir, accepted)


def _one_of_all_equal_seeds(frames: Frames) -> tuple[Frames, list[PassedOver]]:
    """_one_of_equal_seeds of every experiment and scale."""
    kept: Frames = {name: {} for name in frames}
    passed_over: list[PassedOver] = []
    for name, by_scale in frames.items():
        for model, frame in by_scale.items():
            kept[name][model], repeated = _one_of_equal_seeds(frame, EXPERIMENTS[name].axes)
            passed_over += repeated
    return kept, passed_over


def _one_of_equal_seeds(frame: pd.DataFrame, axes: Sequence[str]) -> tuple[pd.DataFrame, list[PassedOver]]:
    """``frame`` without the seeds of an optimizer that repeat another one's losses to the last digit.

    Such a seed changes nothing, and would count as evidence without any spread. It takes two runs or more that both
    have: one loss alone may be the same, of a model that has come to guess every token alike.
    """
    cell = ["condition", *(axis for axis in axes if axis not in AXES)]
    if not frame.duplicated(["optimizer", *cell, "val_loss"]).any():
        return frame, []
    repeated = []
    for optimizer, own in frame.groupby("optimizer"):
        kept: dict[int, dict[Any, float]] = {}
        for seed, runs in own.groupby("seed"):
            losses = dict(zip(runs[cell].itertuples(index=False, name=None), runs["val_loss"], strict=True))
            same = [first for first, others in kept.items() if _are_equal(losses, others)]
            if same:
                what = f"the losses of {optimizer}, seed {seed}, are those of seed {same[0]} to the last digit"
                repeated += [PassedOver(folder, f"{what}: the two count as one") for folder in runs["folder"]]
            else:
                kept[int(seed)] = losses  # pyright: ignore[reportArgumentType]
    return frame[~frame["folder"].isin([entry.folder for entry in repeated])].reset_index(drop=True), repeated


def _are_equal(losses: dict[Any, float], others: dict[Any, float]) -> bool:
    """Whether they have two cells or more in common, and the same loss in each of them."""
    shared = losses.keys() & others.keys()
    return len(shared) >= 2 and all(losses[cell] == others[cell] for cell in shared)


def _failed_by_experiment(
    failed: Sequence[FailedRun], sweeps_of: Mapping[str, tuple[str, ...]]
) -> dict[str, list[FailedRun]]:
    """The runs that failed, by the experiment of their sweep."""
    own = {name: [run for run in failed if run.sweep_name in sweeps] for name, sweeps in sweeps_of.items()}
    return {
        name: runs if _is_over_strength(name) else [_failed_at_strength(run) for run in runs]
        for name, runs in own.items()
    }


def _is_over_strength(name: str) -> bool:
    """Whether the experiment called ``name`` compares strengths of error feedback."""
    return STRENGTH in EXPERIMENTS[name].axes


def _at_strength(row: dict[str, Any]) -> dict[str, Any]:
    """``row``; with error feedback of another strength than its default, which is the paper's, as a condition of its
    own, which is not the paper's async + EF."""
    return row | {"condition": _condition_at_strength(row["condition"], row["config"])}


def _failed_at_strength(run: FailedRun) -> FailedRun:
    """The same for a run that failed."""
    try:
        return replace(run, condition=_condition_at_strength(run.condition, read_config(run.folder / CONFIG_FILE)))
    except UnusableRun:
        return run


def _condition_at_strength(condition: str, config: Mapping[str, str]) -> str:
    strength = json.loads(config.get(STRENGTH, "null"))
    if not condition.endswith("_ef") or strength in (None, _default_strength()):
        return condition
    return f"{condition}_{strength}"


@cache
def _default_strength() -> float:
    """Of error feedback."""
    return yaml.safe_load(EF_FILE.read_text(encoding="utf-8"))["strength"]


def _of_no_experiment(rows: Sequence[dict[str, Any]], sweeps_of: dict[str, tuple[str, ...]]) -> list[PassedOver]:
    """An entry for each sweep that is taken for nothing, not one for each of its runs."""
    taken = {sweep for sweeps in sweeps_of.values() for sweep in sweeps}
    counts = Counter((row["sweep_name"], row["folder"].parent) for row in rows if row["sweep_name"] not in taken)
    return [
        PassedOver(folder, f"{count} runs of the sweep {sweep}, which no table, figure or claim is made of")
        for (sweep, folder), count in counts.items()
    ]


def _of_no_condition(rows: Sequence[dict[str, Any]], sweeps_of: dict[str, tuple[str, ...]]) -> list[PassedOver]:
    """An entry for each condition that no experiment of its sweep makes anything of, not one for each of its runs."""
    conditions: dict[str, set[str]] = defaultdict(set)
    for name, sweeps in sweeps_of.items():
        for sweep in sweeps:
            conditions[sweep].update(EXPERIMENTS[name].conditions)
    counts = Counter(
        (row["folder"].parent, row["condition"])
        for row in rows
        if row["sweep_name"] in conditions and row["condition"] not in conditions[row["sweep_name"]]
    )
    return [
        PassedOver(folder, f"condition {name}: {count} run{'s' if count > 1 else ''}, in no table, figure or claim")
        for (folder, name), count in counts.items()
    ]
