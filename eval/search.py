"""Which checkpoints ``ckpt`` names: those that are there, or all that runs write while they train.

Evaluation during training is this and nothing else: a process beside the run reads its checkpoints as they appear. The
training has no part in it, so it stays the same to the last bit, on one process or many, and waits for nothing.
"""

from __future__ import annotations

import functools
import glob
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from asyncpp.errors import require
from asyncpp.records import CONFIG_FILE, Status, read_summary
from asyncpp.trainer.checkpoint.names import CHECKPOINTS_FOLDER, step_folders, step_of

HF_CONFIG_FILE = "config.json"
POLL_S = 2.0


def find(patterns: Sequence[str], every: bool = False) -> list[Path]:
    """The folders that ``ckpt`` names: paths, or globs, of which what is no checkpoint is passed over with a warning.

    every: all checkpoints of a run in the place of the run's folder, the oldest first.
    Raises ConfigError for a path that is no run, checkpoint or exported model, and a glob that leaves nothing.
    """
    found = _matching(patterns, _fault_of_model, "no run, checkpoint or model", _warn)
    if every:
        found = [path for folder in found for path in (_checkpoints(folder) or [folder])]
    return list(dict.fromkeys(found))


def follow(patterns: Sequence[str]) -> Iterator[Path]:
    """Every checkpoint of the runs that ``ckpt`` names, the oldest first, until all these runs are finished or failed.

    An interrupted run is waited for: it may be started again. A checkpoint that its run removes before it is asked for
    is never seen. Raises ConfigError for a path that is no run, and a glob without one.
    """
    seen: set[Path] = set()
    warn_once = functools.cache(_warn)
    say_once = functools.cache(functools.partial(print, file=sys.stderr))
    while True:
        runs = _matching(patterns, _fault_of_run, "no run", warn_once)
        have_ended = all(_has_ended(run) for run in runs)  # asked first: what ended has no checkpoint to come
        new = next((path for run in runs for path in _checkpoints(run) if path not in seen), None)
        if new is not None:
            seen.add(new)
            yield new
        elif have_ended:
            return
        else:
            say_once("waiting for the next checkpoint; Ctrl-C ends this, and the same command goes on")
            time.sleep(POLL_S)


def runs_of(patterns: Sequence[str]) -> list[Path]:
    """The runs that ``follow`` begins with, which says what it passes over. Raises ConfigError as it does."""
    return _matching(patterns, _fault_of_run, "no run", lambda line: None)


def _matching(
    patterns: Sequence[str], fault_of: Callable[[Path], str | None], nothing: str, warn: Callable[[str], None]
) -> list[Path]:
    """The folders of ``patterns`` that have no fault. nothing: what a glob lacks that leaves none."""
    found: list[Path] = []
    for pattern in patterns:
        if not glob.has_magic(pattern) or Path(pattern).exists():
            fault = fault_of(Path(pattern))
            require(fault is None, "ckpt", pattern, fault or "")
            found.append(Path(pattern))
            continue
        matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207, may be absolute
        faults = {match: fault_of(match) for match in matches if match.is_dir()}
        fitting = [match for match, fault in faults.items() if fault is None]
        require(bool(fitting), "ckpt", pattern, f"matches {len(faults)} folders, but {nothing}")
        for match, fault in faults.items():
            if fault is not None:
                warn(f"passing over {match}: {fault}")
        found += fitting
    return found


def _fault_of_model(folder: Path) -> str | None:
    """Why ``folder`` has nothing that could be scored; None where it has."""
    if not folder.exists():
        return "there is no such folder"
    if (folder / HF_CONFIG_FILE).is_file():
        return None
    if (folder / CONFIG_FILE).is_file():
        return None if _checkpoints(folder) else f"expected a run with a checkpoint in {CHECKPOINTS_FOLDER}/"
    if step_of(folder.resolve()) is not None and (folder.resolve().parents[1] / CONFIG_FILE).is_file():
        return None
    return f"expected a run's folder, one of its checkpoints, or an exported model with a {HF_CONFIG_FILE}"


def _fault_of_run(folder: Path) -> str | None:
    if not folder.exists():
        return "there is no such folder"
    return None if (folder / CONFIG_FILE).is_file() else "expected a run's folder for checkpoints=watch"


def _checkpoints(run: Path) -> list[Path]:
    """The oldest first; of a folder that is no run, none."""
    return step_folders(run / CHECKPOINTS_FOLDER)[::-1]


def _has_ended(run: Path) -> bool:
    return (read_summary(run) or {}).get("status") in (Status.FINISHED, Status.FAILED)


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)
