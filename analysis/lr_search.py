"""The learning-rate search behind conf/optimizer: what was tried on the synchronous baseline, and what won.

    python -m asyncpp.sweep run appendix_a_learning_rate
    python analysis/lr_search.py [runs=runs/appendix_a_learning_rate] [out=docs/lr-search-tiny.md] [json=false]

Exit codes: 0 done, 2 bad input.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml

from asyncpp.errors import require
from asyncpp.records import CONFIG_FILE, ENVIRONMENT_FILE, Status, find_runs, write_atomically
from command_line import run_command


@dataclass
class SearchOptions:
    runs: Path = Path("runs/appendix_a_learning_rate")
    out: Path = Path("docs/lr-search-tiny.md")
    json: bool = False


def load_search(runs_dir: Path) -> pd.DataFrame:
    """A row a finished synchronous run: optimizer, lr, seed, val_loss (nats a token; NaN where it diverged)."""
    rows = []
    for run in find_runs(runs_dir):
        if run.summary is None or run.summary["delay"] != "sync" or run.summary["status"] == Status.INTERRUPTED:
            continue
        config = yaml.safe_load((run.folder / CONFIG_FILE).read_text())
        loss = run.summary.get("val_loss") if run.summary["status"] == Status.FINISHED else None
        rows.append((run.summary["optimizer"], float(config["optimizer"]["lr"]), run.summary["seed"], loss))
    require(bool(rows), "runs", runs_dir, "expected at least one synchronous run that ended")
    return pd.DataFrame(rows, columns=["optimizer", "lr", "seed", "val_loss"]).astype({"val_loss": float})


def best(search: pd.DataFrame) -> pd.DataFrame:
    """For every optimizer its learning rate with the lowest mean loss, and whether it stands at the grid's edge."""
    means = search.groupby(["optimizer", "lr"])["val_loss"].mean().dropna().reset_index()
    winners = means.loc[means.groupby("optimizer")["val_loss"].idxmin()].set_index("optimizer")
    tried = search.groupby("optimizer")["lr"]
    winners["at_edge"] = (winners["lr"] == tried.min()) | (winners["lr"] == tried.max())
    return winners


def to_markdown(search: pd.DataFrame, machine: str) -> str:
    """A line an optimizer: every learning rate with its loss, the best one in bold."""
    winners = best(search)
    best_lr, at_edge = winners["lr"].to_dict(), winners["at_edge"].to_dict()
    seeds = ", ".join(str(seed) for seed in sorted(set(search["seed"])))
    lines = [
        "# Learning rates at tiny scale",
        "",
        "Validation loss (nats a token) of the synchronous baseline by peak learning rate; the lowest is bold, and is",
        "the default in `conf/optimizer`. The same values are used under delay, as in the paper. Made by",
        "`python -m asyncpp.sweep run appendix_a_learning_rate && python analysis/lr_search.py`",
        f"on {machine}. Seeds: {seeds}. `(edge)`: the best is the largest or smallest that was tried.",
        "",
        "| optimizer | learning rate: loss |",
        "|---|---|",
    ]
    for optimizer, rows in search.groupby("optimizer"):
        cells = []
        for lr, loss in rows.groupby("lr")["val_loss"].mean().items():
            cell = f"{lr:g}: {'diverged' if pd.isna(loss) else f'{loss:.3f}'}"
            cells.append(f"**{cell}**" if lr == best_lr[optimizer] else cell)
        edge = " (edge)" if at_edge[optimizer] else ""
        lines.append(f"| {optimizer} | {' · '.join(cells)}{edge} |")
    return "\n".join(lines) + "\n"


def machine_of(runs_dir: Path) -> str:
    """The processor on which the first run was made."""
    for run in find_runs(runs_dir):
        environment = json.loads((run.folder / ENVIRONMENT_FILE).read_text())
        return (
            f"{environment['num_cpus']} cores of {environment['processor']}, torch {environment['packages']['torch']}"
        )
    return "an unknown machine"


def main(options: SearchOptions) -> None:
    search = load_search(options.runs)
    text = to_markdown(search, machine_of(options.runs))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, text)
    if options.json:
        print(json.dumps({name: float(lr) for name, lr in best(search)["lr"].items()}))
    else:
        print(text)


if __name__ == "__main__":
    sys.exit(run_command(main, SearchOptions, sys.argv[1:], __doc__))
