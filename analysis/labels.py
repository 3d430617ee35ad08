"""What tables and figures call optimizers and conditions, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OPTIMIZERS = {
    "adamw": "AdamW",
    "muon": "Muon",
    "normuon": "NorMuon",
    "soap": "SOAP",
    "adan": "Adan",
    "lion": "Lion",
    "mars": "MARS",
    "nadam": "NAdam",
    "sgd": "SGD",
}

# The conditions of the paper's Tables 1 and 2, by the names that runs.condition gives.
CONDITIONS = {"sync": "sync", "async": "async", "async_ef": "async + EF"}

# What is done about a delay of one update, by the same names.
CORRECTIONS = {
    "async": "nothing",
    "async_ef": "error feedback",
    "async_sync_start": "sync start",
    "async_nesterov": "Nesterov",
    "async_dc_asgd": "delay compensation",
}


@dataclass(frozen=True)
class Benchmark:
    """title: its printed name. metric: lm-eval's name of the one that is usual for it. chance: the accuracy (a
    fraction) of a guess, or of always giving the more frequent answer: 62 % of BoolQ's are yes."""

    title: str
    metric: str
    chance: float


# The benchmarks of Table 4 by lm-eval's names.
BENCHMARKS = {
    "mmlu": Benchmark("MMLU", "acc", 0.25),
    "arc_easy": Benchmark("ARC-Easy", "acc", 0.25),
    "arc_challenge": Benchmark("ARC-Challenge", "acc_norm", 0.25),
    "hellaswag": Benchmark("HellaSwag", "acc_norm", 0.25),
    "piqa": Benchmark("PIQA", "acc", 0.5),
    "boolq": Benchmark("BoolQ", "acc", 0.62),
    "openbookqa": Benchmark("OpenBookQA", "acc_norm", 0.25),
}

LOSS_CURVES = "loss_curves"  # the figure's file, without a suffix


def optimizer_title(name: str) -> str:
    """The optimizer's printed name; one that is not the paper's goes by its option's name."""
    return OPTIMIZERS.get(name, name)


def in_order(optimizers: Iterable[str]) -> list[str]:
    """The paper's optimizers in the order above, then all others by name."""
    known = list(OPTIMIZERS)
    return sorted(set(optimizers), key=lambda name: (known.index(name) if name in known else len(known), name))
