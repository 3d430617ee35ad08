"""Staleness probes of runs with trainer.probe_every: how a late gradient differs from a fresh one, layer by layer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from asyncpp.errors import require
from labels import CONDITIONS
from metrics import measurements
from runs import PassedOver, UnusableRun

PREFIX = "probe/"
# What asyncpp.trainer.probes writes: key and printed name, cosines in [-1, 1] and a ratio.
QUANTITIES = {
    "gradient_cosine": "cosine of the stale\nand the fresh gradient",
    "gradient_norm_ratio": "norm of the stale over\nthe fresh gradient",
    "update_cosine": "cosine of one update\nand the one before",
}


@dataclass(frozen=True)
class Probes:
    """frame: ``optimizer condition seed step quantity layer value``, a row a measurement. passed_over: runs without
    any, and why."""

    frame: pd.DataFrame
    passed_over: list[PassedOver]


def staleness_probes(runs: pd.DataFrame) -> Probes:
    """What was probed in those of ``runs`` (a frame with ``optimizer condition seed folder``) of labels.CONDITIONS.

    Raises ConfigError where no run was probed.
    """
    rows, passed_over = [], []
    for run in runs[runs["condition"].isin(list(CONDITIONS))].to_dict("records"):
        try:
            rows += _of_run(run)
        except UnusableRun as reason:
            passed_over.append(PassedOver(run["folder"], str(reason)))
    require(bool(rows), "runs", runs["folder"].iloc[0], "expected runs with trainer.probe_every")
    columns = ["optimizer", "condition", "seed", "step", "quantity", "layer", "value"]
    return Probes(pd.DataFrame(rows, columns=columns), passed_over)


def _of_run(run: Mapping[Hashable, Any]) -> list[tuple[Any, ...]]:
    """Raises UnusableRun where there is nothing to be read."""
    probed = measurements(run["folder"], PREFIX)
    if not probed:
        raise UnusableRun("it was not probed")
    place = run["optimizer"], run["condition"], run["seed"]
    keys = [key.removeprefix(PREFIX).partition("/") for _, key, _ in probed]
    return [
        (*place, step, quantity, layer, value)
        for (step, _, value), (quantity, _, layer) in zip(probed, keys, strict=True)
    ]
