"""The names of a checkpoint's tensors, files and folders. A name that does not match is not ours, and is not opened."""

from __future__ import annotations

import re
from pathlib import Path

MANIFEST_FILE = "manifest.json"
CHECKPOINTS_FOLDER = "checkpoints"  # of a run folder

_STEP_FOLDER = re.compile(r"step-(\d{8}|[1-9]\d{8,})", re.ASCII)
_FILE = re.compile(r"rank-\d{4,}\.safetensors", re.ASCII)
_TENSOR = re.compile(r"(weights|weights@\d+|optimizer|correction)/[\w.-]+", re.ASCII)


def weight_name(parameter: str, version: int | None = None) -> str:
    """version: None for the newest."""
    return f"weights/{parameter}" if version is None else f"weights@{version}/{parameter}"


def optimizer_name(key: str) -> str:
    """key: of Optimizer.state_dict(), ``<parameter>.<state>``."""
    return f"optimizer/{key}"


def correction_name(parameter: str, kind: str) -> str:
    return f"correction/{parameter}.{kind}"


def is_tensor_name(name: str) -> bool:
    return _TENSOR.fullmatch(name) is not None


def file_name(rank: int) -> str:
    return f"rank-{rank:04d}.safetensors"


def is_file_name(name: str) -> bool:
    return _FILE.fullmatch(name) is not None


def step_folder(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def step_of(folder: Path) -> int | None:
    """The step that a folder's name says, or None where it is no checkpoint's name."""
    match = _STEP_FOLDER.fullmatch(folder.name)
    return int(match[1]) if match else None


def step_folders(root: Path) -> list[Path]:
    """Every checkpoint below ``root``, the newest first; none where there is no such folder."""
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if step_of(path) is not None), key=lambda p: -(step_of(p) or 0))
