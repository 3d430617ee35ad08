"""What tables and figures call optimizers and conditions, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

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

# The benchmarks of Table 4 by lm-eval's names: printed name, and the metric that is usual for it.
BENCHMARKS = {
    "mmlu": ("MMLU", "acc"),
    "arc_easy": ("ARC-Easy", "acc"),
    "arc_challenge": ("ARC-Challenge", "acc_norm"),
    "hellaswag": ("HellaSwag", "acc_norm"),
    "piqa": ("PIQA", "acc"),
    "boolq": ("BoolQ", "acc"),
    "openbookqa": ("OpenBookQA", "acc_norm"),
}

LOSS_CURVES = "loss_curves"  # the figure's file, without a suffix


def optimizer_title(name: str) -> str:
    """The optimizer's printed name; one that is not the paper's goes by its option's name."""
    return OPTIMIZERS.get(name, name)


def in_order(optimizers: Iterable[str]) -> list[str]:
    """The paper's optimizers in the order above, then all others by name."""
    known = list(OPTIMIZERS)
    return sorted(set(optimizers), key=lambda name: (known.index(name) if name in known else len(known), name))
