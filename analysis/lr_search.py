"""The learning-rate search behind conf/optimizer: what was tried on the synchronous baseline, and what won.

    python -m asyncpp.sweep run appendix_a_learning_rate
    python analysis/lr_search.py [runs=runs/appendix_a_learning_rate] [scale=tiny] [out=docs/lr-search-tiny.md]
                                 [json=false]

runs: a folder that holds run folders, at any depth; those of the sweep above count. scale: the name of a model.
out: the file that is written; docs/lr-search-<scale>.md where none is named.
json=true prints the winners as one JSON document, null for an optimizer without one.
Exit codes: 0 done, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

import provenance
from asyncpp.arguments import run_command
from asyncpp.errors import require
from asyncpp.records import CONFIG_FILE, write_atomically
from experiments import EXPERIMENTS
from gaps import SMALLEST_GAP
from labels import in_order
from load_experiments import load_experiments
from outputs import output_folder, report_passed_over
from runs import FailedRun, UnusableRun, read_config
from table_text import MISSING

CONF = Path(__file__).parents[1] / "conf"
EXPERIMENT = "learning_rate"
RUN = ["optimizer", "lr", "seed"]


@dataclass
class SearchOptions:
    runs: Path = Path("runs/appendix_a_learning_rate")
    scale: str = "tiny"
    out: Path | None = None
    json: bool = False


@dataclass(frozen=True)
class Search:
    """One optimizer's. failed: the learning rates of which a run failed. means: by learning rate, nats per token over
    the seeds that all the others have; NaN of a failed one, and where they share no seed."""

    means: pd.Series
    failed: list[float]

    @property
    def ranked(self) -> pd.Series:
        """The means that there are, the lowest first."""
        return self.means.dropna().sort_values()

    @property
    def best(self) -> float | None:
        """The rate with the lowest mean, None where no rate has one."""
        return float(self.ranked.index[0]) if len(self.ranked) else None

    @property
    def notes(self) -> list[str]:
        """What is to be said of the best rate."""
        ranked = self.ranked
        is_edge = self.best in (self.means.index.min(), self.means.index.max())
        is_flat = len(ranked) > 1 and ranked.iloc[1] - ranked.iloc[0] <= SMALLEST_GAP
        return [note for note, applies in (("edge", is_edge), ("flat", is_flat)) if applies]

    def cell(self, lr: float) -> str:
        """A rate with its loss; the best one in bold."""
        loss = "failed" if lr in self.failed else MISSING if math.isnan(self.means[lr]) else f"{self.means[lr]:.3f}"
        return f"**{lr:g}: {loss}**" if lr == self.best else f"{lr:g}: {loss}"


def main(options: SearchOptions) -> None:
    experiments = load_experiments(options.runs, options.scale)
    frame = experiments.frames[EXPERIMENT].get(options.scale, pd.DataFrame(columns=["condition"]))
    finished = frame[frame["condition"] == "sync"]
    accepted = f"expected a finished synchronous run of {EXPERIMENTS[EXPERIMENT].run} at scale={options.scale}"
    require(not finished.empty, "runs", options.runs, accepted)
    runs = all_runs(finished, failed_runs(experiments.failed[EXPERIMENT]))
    searches = search(runs)
    text = to_markdown(searches, sorted(set(runs["seed"])), options.scale, machine_of(finished["folder"]))
    out = options.out or Path(f"docs/lr-search-{options.scale}.md")
    output_folder(out.parent)
    write_atomically(out, text)
    if options.json:
        print(json.dumps({name: own.best for name, own in searches.items()}))
        return
    report_passed_over(experiments.passed_over)
    print(text)


def failed_runs(failed: Iterable[FailedRun]) -> Iterator[dict[str, Any]]:
    """Optimizer, lr and seed of the synchronous ones."""
    for run in failed:
        if run.condition == "sync":
            try:
                lr = json.loads(read_config(run.folder / CONFIG_FILE)["optimizer.lr"])
            except (UnusableRun, KeyError):
                continue
            yield {"optimizer": run.optimizer, "lr": lr, "seed": run.seed}


def all_runs(finished: pd.DataFrame, failed: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """A row a run: optimizer, lr, seed, val_loss (nats per token; infinite of a failed run that was not made again)."""
    losses = finished.rename(columns={"optimizer.lr": "lr"})[[*RUN, "val_loss"]]
    without = pd.DataFrame(failed, columns=RUN).assign(val_loss=math.inf)
    return pd.concat([losses, without]).drop_duplicates(RUN).astype({"lr": float, "seed": int})


def search(runs: pd.DataFrame) -> dict[str, Search]:
    """Each optimizer's search, from the rows of all_runs."""
    searches = {}
    for optimizer in in_order(runs["optimizer"]):
        own = runs[runs["optimizer"] == optimizer]
        losses = own.pivot(index="lr", columns="seed", values="val_loss")
        has_failed = (losses == math.inf).any(axis="columns")
        shared = losses[~has_failed].dropna(axis="columns")
        means = shared.mean(axis="columns").reindex(losses.index)
        searches[optimizer] = Search(means, list(losses.index[has_failed]))
    return searches


def default_lr(optimizer: str, scale: str) -> float | None:
    """The rate that a run of the model ``scale`` has unless it is told another; None of an optimizer without one."""
    file, recipe = CONF / "optimizer" / f"{optimizer}.yaml", CONF / "recipe" / f"{scale}.yaml"
    if not file.is_file():
        return None
    rates = OmegaConf.select(OmegaConf.load(recipe), "recipe") if recipe.is_file() else {}
    return float(OmegaConf.create({"recipe": rates, "optimizer": OmegaConf.load(file)}).optimizer.lr)


def other_defaults(searches: dict[str, Search], scale: str) -> list[str]:
    """The optimizers whose default is another rate than their best one, each with its default."""
    others = []
    for optimizer, own in searches.items():
        default = default_lr(optimizer, scale)
        if own.best is not None and own.best != default:
            others.append(f"{optimizer} ({MISSING if default is None else f'{default:g}'})")
    return others


def to_markdown(searches: dict[str, Search], seeds: list[int], scale: str, machine: str) -> str:
    """A line an optimizer: every learning rate with its loss, the best one in bold. Says whose default is another."""
    others = ", ".join(other_defaults(searches, scale))
    default = f"the default in `conf/optimizer`{' but for ' if others else ''}{others}."
    lines = [
        f"# Learning rates at {scale} scale",
        "",
        "Validation loss (nats a token) of the synchronous baseline by peak learning rate; the lowest is bold, and is",
        f"{default} The same values are used under delay, as in the paper. Made by",
        f"`{EXPERIMENTS[EXPERIMENT].command(scale)} && python analysis/lr_search.py scale={scale}`",
        f"on {machine}. Seeds: {', '.join(str(seed) for seed in seeds)}.",
        "`failed`: a seed's run ended without a finite loss, so that this rate cannot be the best.",
        "`(edge)`: the best is the largest or smallest that was tried.",
        f"`(flat)`: the second best is within {SMALLEST_GAP:g} of it. Seeds alone can make more than",
        "that: Table 2 has the spread of each optimizer's synchronous loss.",
        "",
        "| optimizer | learning rate: loss |",
        "|---|---|",
    ]
    for optimizer, own in searches.items():
        notes = f" ({', '.join(own.notes)})" if own.notes else ""
        lines.append(f"| {optimizer} | {' · '.join(own.cell(lr) for lr in own.means.index)}{notes} |")
    return "\n".join(lines) + "\n"


def machine_of(folders: Iterable[Path]) -> str:
    """The processors and torch that the runs were made with."""
    values = provenance.versions(folders)
    if "torch" not in values:
        return "a machine that was not recorded"
    return f"{values['num_cpus']} cores of {values['processor']}, torch {values['torch']}"


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", sys.argv[1:], SearchOptions, main))
