"""Which sweeps a table, figure or claim is made of, and in what the runs of each may differ.

A run says in its summary which sweep it belongs to. So ``runs=runs`` finds every experiment below one folder, and
``runs=runs/demo`` the one that is there. Runs are compared within a scale, which goes by the name of the model.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from asyncpp.errors import require
from asyncpp.records import CONFIG_FILE
from comparable_runs import AXES, comparable, require_one_config
from labels import CONDITIONS
from runs import FailedRun, PassedOver, UnusableRun, read_config, read_runs
from scores import unreadable_scores
from sweep_series import batch_tokens, momentum

SWEEPS = Path(__file__).parents[1] / "sweeps"
EF_FILE = Path(__file__).parents[1] / "conf" / "correction" / "ef.yaml"


@dataclass(frozen=True)
class Experiment:
    """makes: what a reader gets from it, in words. run: the sweep that makes all of its runs.

    sweeps: whose runs are taken together; a sweep may put its runs into another one's folder. axes: what the runs may
    differ in, as for comparable_runs. equal_tokens: whether all runs of a scale must have seen as many tokens, up to a
    last batch. conditions: those that anything is made of. then: what has to be done with the runs before anything is
    made of them. x: of a frame of runs, the number that they are compared over, where that is less than a key says: at
    one number there is one configuration.
    """

    makes: str
    run: str
    sweeps: tuple[str, ...]
    axes: tuple[str, ...] = AXES
    equal_tokens: bool = False
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    then: str | None = None
    x: Callable[[pd.DataFrame], pd.Series] | None = None

    def command(self, model: str | None = None, seeds: Sequence[int] | None = None) -> str:
        """What makes its runs, or more of them, at the scale of ``model``; None is the sweep's first scale.

        Where the sweep has no such scale it is a comment that says so: nothing of another size stands in for it.
        """
        scales = _scales(self.run)
        fitting = [name for name, trained in scales.items() if model is None or _size(trained) == _size(model)]
        if not fitting:
            return f"# no sweep of this size: {self.run} has {', '.join(scales)}, not {model}"
        is_first = fitting[0] == next(iter(scales))
        options = [] if is_first else [f"scale={fitting[0]}"]
        options += [f"seeds=[{','.join(str(seed) for seed in seeds)}]"] if seeds else []
        sweep = " ".join(["python -m asyncpp.sweep run", self.run, *options])
        return f"{sweep} && {self.then}" if self.then else sweep


# Scores the runs of a sweep's folder on Table 4's benchmarks.
SCORE = (
    "python -m eval.fetch out=data/benchmarks source=pypi && "
    "python eval/run.py 'ckpt=runs/{folder}/*' eval.data_root=data/benchmarks max_length=512"
)

EXPERIMENTS = {
    "optimizers": Experiment("Tables 1 and 2", "table2_error_feedback", ("table1_optimizers", "table2_error_feedback")),
    "moe": Experiment("Table 3", "table3_moe", ("table3_moe",)),
    "downstream": Experiment(
        "Table 4",
        "table4_downstream",
        ("table4_downstream", "table3_moe"),  # whose runs it shares; where none is scored, scored runs of Table 2 do
        then=SCORE.format(folder="table3_moe"),
    ),
    "momentum": Experiment(
        "Figure 4 (momentum)",
        "figure4_momentum",
        ("figure4_momentum",),
        (*AXES, "optimizer.betas", "optimizer.momentum"),
        x=momentum,
    ),
    "depth": Experiment(
        "Figure 6 (depth)",
        "figure6_pipedream",
        ("figure6_pipedream",),
        (*AXES, "pipeline.num_stages"),
        conditions=("sync", "async", "pipedream"),
    ),
    "learning_rate": Experiment(
        "Appendix A (learning rate)",
        "appendix_a_learning_rate",
        ("appendix_a_learning_rate",),
        (*AXES, "optimizer.lr"),
    ),
    "batch_size": Experiment(
        "Appendix A (batch size)",
        "appendix_a_batch_size",
        ("appendix_a_batch_size",),
        (*AXES, "trainer.batch_size", "trainer.num_steps", "trainer.num_micro_batches"),
        equal_tokens=True,
        x=batch_tokens,
    ),
    "initial_std": Experiment("the initial weights", "initial_std", ("initial_std",), (*AXES, "model.init_std")),
    "moments": Experiment("AdamW's moments", "moments", ("moments",), (*AXES, "optimizer.delayed_moment")),
    "strength": Experiment("the strength of error feedback", "strength", ("strength",), (*AXES, "correction.strength")),
    "probes": Experiment("staleness probes", "probes", ("probes",)),
}


@dataclass(frozen=True)
class Missing:
    """A table or figure for which there are no runs, why, and the command that makes them."""

    name: str
    title: str
    reason: str
    command: str


# What stands for Tables 1 and 2 where their own sweeps have no runs, and no table otherwise.
DEMO = "demo"


@dataclass(frozen=True)
class Experiments:
    """frames: by experiment and scale (a model's name), as comparable_runs makes them. An experiment without runs has
    no scales. models: every one that there are usable runs of. passed_over: folders that count nowhere, and why.
    failed: those of them that failed, by experiment."""

    frames: dict[str, dict[str, pd.DataFrame]]
    models: list[str]
    passed_over: list[PassedOver]
    failed: dict[str, list[FailedRun]]

    @property
    def all_failed(self) -> list[FailedRun]:
        """Of every experiment, once each."""
        return list(dict.fromkeys(run for runs in self.failed.values() for run in runs))

    def missing(self, name: str, title: str, experiment: str, runs: str = "runs") -> Missing:
        """Of a table or figure that is made of ``experiment``, which has none of the ``runs`` that it takes."""
        reason = f"no {runs} of {' or '.join(EXPERIMENTS[experiment].sweeps)}"
        return Missing(name, title, reason, self.command(experiment))

    def command(self, experiment: str) -> str:
        """What makes the runs of an experiment that has none, at the smallest of the sizes that are here."""
        sizes = {_size(model) for model in self.models}
        trained = _scales(EXPERIMENTS[experiment].run).values()
        return EXPERIMENTS[experiment].command(
            next((model for model in trained if _size(model) in sizes), self.models[0])
        )


def load_experiments(runs_dir: Path, scale: str | None = None) -> Experiments:
    """Every experiment that has usable runs below ``runs_dir``.

    scale: leave out all runs of other models. A sweep that is in no experiment stands for Tables 1 and 2 where it is
    the only one that is there; of several, ``demo`` does.
    Raises ConfigError where there is no usable run of any experiment or of ``scale``, and where the runs of one
    experiment differ in more than its axes, or at one place on its axis.
    """
    read = read_runs(runs_dir)
    rows = [row for row in read.rows if scale in (None, row["model"])]
    models = ", ".join(sorted({row["model"] for row in read.rows}))
    require(bool(rows), "scale", scale, f"expected one of {models}, of which there are finished runs")
    sweeps_of = _sweeps(rows)
    rows = [row if row["sweep_name"] in sweeps_of["strength"] else _at_strength(row) for row in rows]
    frames: dict[str, dict[str, pd.DataFrame]] = {}
    failed: dict[str, list[FailedRun]] = {}
    passed_over = [*read.passed_over, *_of_no_experiment(rows, sweeps_of), *_of_no_condition(rows, sweeps_of)]
    passed_over += unreadable_scores(rows)
    for name, experiment in EXPERIMENTS.items():
        frames[name] = {}
        own = [row for row in rows if row["sweep_name"] in sweeps_of[name]]
        failed[name] = [run for run in read.failed if run.sweep_name in sweeps_of[name] and scale in (None, run.model)]
        if name != "strength":
            failed[name] = [_failed_at_strength(run) for run in failed[name]]
        for model in dict.fromkeys(row["model"] for row in own):
            loaded = comparable(runs_dir, [row for row in own if row["model"] == model], experiment.axes)
            passed_over += loaded.passed_over
            if loaded.frame.empty:
                continue
            if experiment.x:
                require_one_config(runs_dir, loaded.frame, experiment.axes, experiment.x(loaded.frame))
            if experiment.equal_tokens:
                _require_equal_tokens(runs_dir, loaded.frame)
            frames[name][model] = loaded.frame
    found = ", ".join(sorted({row["sweep_name"] for row in rows}))
    known = ", ".join(sweep for experiment in EXPERIMENTS.values() for sweep in experiment.sweeps)
    accepted = f"expected runs of one of the sweeps {known}, or of one sweep alone; found {found}"
    require(any(frames.values()), "runs", runs_dir, accepted)
    for name, by_scale in frames.items():
        for model, frame in by_scale.items():
            by_scale[model], repeated = _one_of_equal_seeds(frame, EXPERIMENTS[name].axes)
            passed_over += repeated
    passed_over = list(dict.fromkeys(passed_over))  # a sweep of two experiments is looked at twice
    there = list(dict.fromkeys(row["model"] for row in rows))
    return Experiments(frames, there, sorted(passed_over, key=lambda entry: entry.folder), failed)


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
    strength = json.loads(config.get("correction.strength", "null"))
    if not condition.endswith("_ef") or strength in (None, _default_strength()):
        return condition
    return f"{condition}_{strength}"


@cache
def _default_strength() -> float:
    """Of error feedback."""
    return yaml.safe_load(EF_FILE.read_text(encoding="utf-8"))["strength"]


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


def _require_equal_tokens(runs_dir: Path, frame: pd.DataFrame) -> None:
    """Batches of other sizes end at other multiples: a batch more or less is equal."""
    by_tokens = frame.sort_values("tokens_seen")
    fewest, most = by_tokens.iloc[0], by_tokens.iloc[-1]
    sizes = " and ".join(f"{run['tokens_seen']:,} tokens ({run['folder'].name})" for run in (fewest, most))
    accepted = f"expected as many tokens for every batch size, trainer.batch_size x trainer.num_steps; found {sizes}"
    largest_batch = (frame["tokens_seen"] / frame["num_steps"]).max()
    require(most["tokens_seen"] - fewest["tokens_seen"] <= largest_batch, "runs", runs_dir, accepted)


def _scales(sweep: str) -> dict[str, str]:
    """The model that each scale of a sweep's file trains, in the file's order: from small to large."""
    scales = yaml.safe_load((SWEEPS / f"{sweep}.yaml").read_text(encoding="utf-8"))["scales"]
    return {name: overrides["model"] for name, overrides in scales.items()}


def _size(model: str) -> str:
    """A mixture of experts counts as the dense model that it is made of: sweeps call both one scale."""
    return model.removesuffix("_moe")


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
