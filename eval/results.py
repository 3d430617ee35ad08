"""Scores of a checkpoint: one JSON file beside its run, to which every task is added as soon as it is done.

<run folder>/eval/step-00000400-x.json
    checkpoint, weights
    results     a list, one entry a task and setting:
        task, num_fewshot, limit, max_length, dtype, tokenizer
        n               items
        metrics         {acc: {value, stderr}, ...}; stderr is null where lm-eval gives none
        correct         {acc: "0110...", ...}: of every item, in order, whether it was answered correctly
        items_sha256    of the items themselves, so that none but equal ones are ever paired
        versions        of the task's definition, lm-eval, torch and our commit
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from asyncpp.errors import ConfigError
from asyncpp.records import commit, write_json

FOLDER = "eval"


class Results:
    """The file of one checkpoint, read at weights ``reading``. Raises ConfigError where something else is there."""

    def __init__(self, folder: Path, checkpoint: str, reading: str) -> None:
        self.path = folder / FOLDER / f"{checkpoint}-{reading}.json"
        self.checkpoint = checkpoint
        self.reading = reading
        self.entries: list[dict[str, Any]] = []
        if self.path.exists():
            try:
                self.entries = json.loads(self.path.read_text())["results"]
            except (OSError, ValueError, KeyError, TypeError):
                raise ConfigError("ckpt", folder, f"{self.path} holds no results; remove it") from None

    def find(self, task: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The entry of ``task`` with exactly these settings, or None."""
        wanted = {"task": task, **settings}
        return next((e for e in self.entries if wanted.items() <= e.items()), None)

    def add(self, entry: dict[str, Any], settings: Mapping[str, Any]) -> None:
        """Put ``entry`` in the place of an earlier one of its task and settings, and write the file."""
        self.entries = [e for e in self.entries if e is not self.find(entry["task"], settings)] + [entry]
        self.path.parent.mkdir(exist_ok=True)
        write_json(self.path, {"checkpoint": self.checkpoint, "weights": self.reading, "results": self.entries})


def entry_of(task: str, settings: Mapping[str, Any], evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of ``evaluated``, the results that lm-eval gives for one task, group or tag."""
    samples = [sample for name in evaluated["samples"] for sample in _in_order(evaluated["samples"][name])]
    scores = dict(_metrics(evaluated["results"][task]))
    items = hashlib.sha256("".join(sample["doc_hash"] for sample in samples).encode()).hexdigest()
    versions = {name: metadata.version(name) for name in ("lm-eval", "torch")}
    return {
        "task": task,
        **settings,
        "n": len(samples),
        "metrics": scores,
        "correct": {name: marks for name in scores if (marks := _marks(samples, name)) is not None},
        "items_sha256": items,
        "versions": {"task": evaluated["versions"].get(task), **versions, "commit": commit()},
    }


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


def _marks(samples: list[dict[str, Any]], metric: str) -> str | None:
    """0 or 1 for every item; None for a metric that is no such mark."""
    values = [sample.get(metric) for sample in samples]
    return "".join("1" if value else "0" for value in values) if all(value in (0, 1) for value in values) else None
