"""Which sweeps a table, figure or claim is made of, in what the runs of each may differ, and what makes more of them.

Runs are compared within a scale, which goes by the name of the model. load_experiments.py finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml

from comparable_runs import AXES
from labels import CONDITIONS, CORRECTIONS
from runs import FailedRun, PassedOver
from sweep_series import batch_tokens, momentum

SWEEPS = Path(__file__).parents[1] / "sweeps"


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
        train = sweep_command(self.run, None if is_first else fitting[0], seeds)
        return f"{train} && {self.then}" if self.then else train


def sweep_command(sweep: str, scale: str | None = None, seeds: Sequence[int] | None = None) -> str:
    """What makes the runs of a sweep, also of one that is in no experiment. None: its first scale, its own seeds."""
    options = [f"scale={scale}"] if scale else []
    options += [f"seeds=[{','.join(str(seed) for seed in seeds)}]"] if seeds else []
    return " ".join(["python -m asyncpp.sweep run", sweep, *options])


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
    "corrections": Experiment(
        "the corrections",
        "corrections",
        ("corrections", "table1_optimizers", "table2_error_feedback"),  # whose runs it shares
        conditions=("sync", *CORRECTIONS),
    ),
    "probes": Experiment("staleness probes", "probes", ("probes",)),
}


@dataclass(frozen=True)
class Missing:
    """A table or figure for which there are no runs, why, and the command that makes them."""

    name: str
    title: str
    reason: str
    command: str


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


def _scales(sweep: str) -> dict[str, str]:
    """The model that each scale of a sweep's file trains, in the file's order: from small to large."""
    scales = yaml.safe_load((SWEEPS / f"{sweep}.yaml").read_text(encoding="utf-8"))["scales"]
    return {name: overrides["model"] for name, overrides in scales.items()}


def _size(model: str) -> str:
    """A mixture of experts counts as the dense model that it is made of: sweeps call both one scale."""
    return model.removesuffix("_moe")
