"""Run folders: what a run leaves behind, how it is written and how it is read. No torch.

    <runs_dir>/<sweep_name>/<readable name>-<config hash>/
        config.yaml         the resolved configuration
        environment.json    machine, versions, commit, command line
        metrics.jsonl       a row a step, and a row a validation; units stand in the keys
        summary.json        written once, when the run ends; its presence with status "finished" is the proof

Writers never leave a file that a reader could mistake for a whole one: JSON goes to a temporary name first, and a
reader of metrics.jsonl passes over a last line that was cut.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from asyncpp.errors import ConfigError

CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
METRICS_FILE = "metrics.jsonl"
SUMMARY_FILE = "summary.json"
OUTPUT_FILE = "output.log"  # what the process printed, where a sweep started it
LOCK_FILE = ".lock"
COMMIT_FILE = "COMMIT"  # beside the package, in a copy of the code that has no git

# Configuration keys that say where a run's records go, how it is watched or where its prepared tokens lie, not what it
# computes: a run's hash leaves them out, and runs that are compared may differ in them.
BOOKKEEPING_KEYS = (
    "runs_dir",
    "sweep_name",
    "logger",
    "data.root",
    "data.shard_tokens",
    "trainer.eval_every",
    "trainer.probe_every",
    "trainer.dry_run",
    "trainer.checkpoint_every",
    "trainer.checkpoint",
    "resume",
)

# Of taking a lock: is_locked of another process has it for a moment.
LOCK_ATTEMPTS, LOCK_RETRY_S = 20, 0.01
BLOCK_BYTES = 1 << 16  # of a file that is read from its end

# Keys that tell when and how fast, not what: they differ between two runs of the same configuration.
TIME_PREFIX = "time/"


class Status(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class RunIsLocked(RuntimeError):
    """Another process is writing this run folder."""


@dataclass(frozen=True)
class Run:
    """A finished or unfinished run as a reader sees it. ``summary`` is None where the run never ended."""

    folder: Path
    summary: dict[str, Any] | None

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl in order; empty where there is no file."""
        return read_metrics(self.folder / METRICS_FILE)


def config_hash(scientific_config: Mapping[str, Any]) -> str:
    """Eight hex digits that name a configuration. The caller passes what changes the numbers, and nothing else."""
    canonical = json.dumps(scientific_config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def flattened(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a nested configuration, in its order; a list is one value."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted key and both values of everything in which two configurations differ; what one lacks is None there."""
    for key in {**one, **other}:
        left, right = one.get(key), other.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            yield from differences(left, right, f"{prefix}{key}.")
        elif left != right:
            yield f"{prefix}{key}", left, right


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write ``content``, text as UTF-8, so that ``path`` holds either what it held before or all of it.

    Raises OSError, which names ``path`` where the system names no file, as of a full disk.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_metrics_row(file: TextIO, row: Mapping[str, Any]) -> None:
    """Append one row and hand it to the system, so that a watcher sees it and a kill loses no earlier one."""
    file.write(json.dumps(row, allow_nan=False) + "\n")
    file.flush()


def read_metrics(path: Path, containing: str = "") -> list[dict[str, Any]]:
    """The whole rows of a metrics file; none where there is no file.

    containing: only rows with this text, a key for one; the others are not parsed, which takes most of the time.
    A last line without its newline is still being written, or was cut by a kill, and is passed over.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    sought = containing.encode()
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines() if sought in line]


def last_metrics_row(path: Path, key: str) -> dict[str, Any] | None:
    """The last whole row that has ``key``, for whoever watches a run. None where none has."""
    lines = lines_from_end(path)
    next(lines, None)  # what stands behind the last newline: nothing, or a row that is still being written
    rows = (json.loads(line) for line in lines if key.encode() in line)
    return next((row for row in rows if key in row), None)


def lines_from_end(path: Path) -> Iterator[bytes]:
    """The lines of a file, the last one first; none where there is no file. Reads no more of it than is asked for."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        start, lines = file.seek(0, os.SEEK_END), [b""]
        while start > 0:
            end, start = start, max(0, start - BLOCK_BYTES)
            file.seek(start)
            lines = (file.read(end - start) + lines[0]).split(b"\n")
            yield from reversed(lines[1:])
        yield lines[0]


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a run folder, or None where there is none that can be read."""
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return summary if isinstance(summary, dict) else None


def is_finished(folder: Path) -> bool:
    summary = read_summary(folder)
    return summary is not None and summary.get("status") == Status.FINISHED


def find_runs(runs_dir: Path) -> list[Run]:
    """Every run folder below ``runs_dir``, sorted by path. A run folder is one that holds a config.yaml."""
    return [Run(folder, read_summary(folder)) for folder in folders_with(runs_dir, CONFIG_FILE)]


def folders_with(runs_dir: Path, *names: str) -> list[Path]:
    """The folders from ``runs_dir`` on down that hold a file of one of ``names``, sorted.

    Links to folders are followed, as to a scratch disk. What can be reached in several ways is found once, by the way
    without a link where there is one. Runs may be writing there: a folder that vanishes meanwhile is passed over. What
    lies within a run is not read, nor are hidden folders, where a sweep keeps its code.
    """
    found: list[Path] = []
    seen: set[tuple[int, int] | None] = {None}
    to_do = [runs_dir]
    for start in to_do:  # which grows by the links that are met
        for folder, subfolders, files in os.walk(start):
            inode = _inode(Path(folder))
            is_new = inode not in seen
            seen.add(inode)
            if is_new and not set(names).isdisjoint(files):
                found.append(Path(folder))
            is_run = CONFIG_FILE in files and not {SUMMARY_FILE, METRICS_FILE}.isdisjoint(files)
            below = [] if is_run or not is_new else [name for name in sorted(subfolders) if not name.startswith(".")]
            to_do += (path for name in below if (path := Path(folder, name)).is_symlink())
            subfolders[:] = below
    return sorted(found)


def _inode(folder: Path) -> tuple[int, int] | None:
    """What tells the folder from every other one, whatever its path; None where it has vanished."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def require_writable(folder: Path, key: str, value: str) -> None:
    """Raise ConfigError(key, value, ...) unless ``folder`` can be made and written to. Leaves nothing new behind."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(key, value, f"expected a folder that can be written ({error.strerror})") from None
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()


def is_locked(folder: Path, name: str = LOCK_FILE) -> bool:
    """Whether a process holds the run folder, or its lock ``name``, just now."""
    try:
        with (folder / name).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def locked(folder: Path, name: str = LOCK_FILE, wait: bool = False) -> Iterator[None]:
    """Hold the run folder for this process alone. The lock goes with the process, however it ends.

    name: of another lock than the folder's own. Raises RunIsLocked when another process holds it, unless it is to
    ``wait`` for that one.
    """
    with (folder / name).open("w") as file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        else:
            _lock_now(file, folder)
        yield


def _lock_now(file: TextIO, folder: Path) -> None:
    for _ in range(LOCK_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_RETRY_S)
    raise RunIsLocked(f"{folder} is being written by another process")


def commit() -> str:
    """The git commit of the source, with ``-dirty`` where the tree differs from it, or ``unknown``."""
    source = Path(__file__).parent
    with suppress(FileNotFoundError):
        return (source.parent / COMMIT_FILE).read_text(encoding="utf-8").strip()
    git = ["git", "-C", str(source)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}-dirty" if changes.strip() else head


def environment() -> dict[str, Any]:
    """What a result depends on besides its configuration."""
    packages = ("asyncpp", "torch", "numpy", "hydra-core", "tokenizers")
    return {
        "command": sys.argv,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "num_cpus": os.cpu_count(),
        "packages": {name: metadata.version(name) for name in packages},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
