"""Scores of a checkpoint: one JSON file beside its run, to which every task is added as soon as it is done.

<run folder>/eval/step-00000400-x.json
    checkpoint, weights
    model_digest    of weights, model and tokenizer: scores of others that had the same name are left behind
    results     a list, one entry a task and setting:
        task, num_fewshot, limit, max_length, dtype, tokenizer
        n               items
        metrics         {acc: {value, stderr}, ...}; stderr is null where lm-eval gives none
        correct         {acc: "6f1...", ...}: of every item, in order, whether it was answered correctly: bits, the
                        first item in the highest of a byte, as hexadecimal digits
        items_sha256    of the items themselves, so that none but equal ones are ever paired
        versions        of the task's definition, lm-eval, torch and our commit
<run folder>/eval/scores.jsonl
    a row a task that was scored, in the order of scoring: step, weights, num_fewshot, limit,
    eval/<task>/<metric>, eval/<task>/<metric>_stderr
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncpp.errors import ConfigError
from asyncpp.records import commit, locked, write_json, write_metrics_row

if TYPE_CHECKING:
    from eval.checkpoint import Evaluated

FOLDER = "eval"
SCORES_FILE = "scores.jsonl"


class Results:
    """The file of one checkpoint, read at weights ``reading``. Raises ConfigError where something else is there."""

    def __init__(self, evaluated: Evaluated, reading: str) -> None:
        self.path = evaluated.folder / FOLDER / f"{evaluated.name}-{reading}.json"
        self.step = evaluated.step
        self.reading = reading
        self._identity = {
            "checkpoint": evaluated.name,
            "weights": reading,
            "model_digest": evaluated.model_digest,
        }
        self.entries = self._read()

    def _read(self) -> list[dict[str, Any]]:
        """What is kept of these weights by now."""
        if not self.path.exists():
            return []
        try:
            kept = json.loads(self.path.read_text())
            return kept["results"] if kept["model_digest"] == self._identity["model_digest"] else []
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError("ckpt", self.path.parents[1], f"{self.path} holds no results; remove it") from None

    @property
    def title(self) -> str:
        return f"{self.path.parents[1].name}, {self._identity['checkpoint']}, read at {self.reading}"

    def find(self, task: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The entry of ``task`` with exactly these settings, or None."""
        wanted = {"task": task, **settings}
        return next((e for e in self.entries if wanted.items() <= e.items()), None)

    def add(self, entry: dict[str, Any], settings: Mapping[str, Any]) -> None:
        """Put ``entry`` in the place of an earlier one of its task and settings, and write the file; log its scores."""
        self.path.parent.mkdir(exist_ok=True)
        with locked(self.path.parent, wait=True):  # another process may be scoring other tasks
            self.entries = self._read()
            self.entries = [e for e in self.entries if e is not self.find(entry["task"], settings)] + [entry]
            write_json(self.path, {**self._identity, "results": self.entries})
            if self.step is not None:
                with (self.path.parent / SCORES_FILE).open("a") as file:
                    write_metrics_row(file, {"step": self.step, "weights": self.reading, **_row(entry)})


def entry_of(task: str, settings: Mapping[str, Any], evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of ``evaluated``, the results that lm-eval gives for one task, group or tag."""
    samples = [sample for name in evaluated["samples"] for sample in _in_order(evaluated["samples"][name])]
    scores = dict(_metrics(evaluated["results"][task]))
    items = hashlib.sha256("".join(sample["doc_hash"] for sample in samples).encode()).hexdigest()
    return {
        "task": task,
        **settings,
        "n": len(samples),
        "metrics": scores,
        "correct": {name: marks for name in scores if (marks := packed_marks(samples, name)) is not None},
        "items_sha256": items,
        "versions": {"task": evaluated["versions"].get(task), **_versions()},
    }


@cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("lm-eval", "torch")} | {"commit": commit()}


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: entry[key] for key in ("num_fewshot", "limit")}
    for metric, score in entry["metrics"].items():
        name = f"eval/{entry['task']}/{metric}"
        row |= {name: score["value"], f"{name}_stderr": score["stderr"]}
    return row


def _in_order(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry an item, also where lm-eval filters the answers of one in several ways."""
    return sorted({sample["doc_id"]: sample for sample in samples}.values(), key=lambda sample: sample["doc_id"])


def _metrics(scores: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """lm-eval has ``acc,none`` and ``acc_stderr,none``; the word after the comma says how answers were filtered."""
    for key, value in scores.items():
        name, _, answers = key.partition(",")
        if answers and not name.endswith("_stderr"):
            stderr = scores.get(f"{name}_stderr,{answers}")
            own = name if answers == "none" else key
            yield own, {"value": float(value), "stderr": stderr if isinstance(stderr, float) else None}


def packed_marks(samples: list[dict[str, Any]], metric: str) -> str | None:
    """A bit for every item; None for a metric that is no such mark."""
    values = [sample.get(metric) for sample in samples]
    return np.packbits(np.array(values, bool)).tobytes().hex() if all(value in (0, 1) for value in values) else None
