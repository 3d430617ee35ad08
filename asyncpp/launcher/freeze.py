"""What a cell runs is fixed when it is launched: its configuration, and the code.

    <run folder>/config.yaml            every value, which the cell's process reads instead of composing it again
    <sweep folder>/.sweep/code/<digest>/
        asyncpp/ conf/ hydra_plugins/   what Python and Hydra read
        COMMIT                          the git commit, with -dirty where the tree differs from it
        changes.diff                    how it differs

A cell's process finds that copy first (PYTHONPATH), so a file that is edited, or a branch that is changed, while cells
wait or come back from a requeue reaches none of them. The same code is copied once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from asyncpp import records
from asyncpp.launcher.cell import Cell

SOURCE = Path(__file__).parents[2]
FOLDERS = ("asyncpp", "conf", "hydra_plugins")
CHANGES_FILE = "changes.diff"


@dataclass(frozen=True)
class Code:
    """A copy of the code. folder: absolute, as other machines see it, too."""

    folder: Path
    commit: str

    def environment(self) -> dict[str, str]:
        """Variables that make a Python process import this copy, wherever it is started."""
        others = os.environ.get("PYTHONPATH")
        path = f"{self.folder}{os.pathsep}{others}" if others else str(self.folder)
        return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # safe: not what lies in the working directory


def freeze_config(cell: Cell) -> None:
    """Make the cell's run folder, with the configuration that its process reads."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    records.write_atomically(cell.folder / records.CONFIG_FILE, cell.config.to_yaml())


def freeze_code(place: Path) -> Code:
    """Copy the code that is running now below ``place``, unless it is there."""
    files = sorted(path for name in FOLDERS for path in (SOURCE / name).rglob("*") if _belongs(path))
    commit, changes = records.commit(), _changes()
    digest = hashlib.sha256(commit.encode())
    for path in files:
        digest.update(str(path.relative_to(SOURCE)).encode() + b"\0" + path.read_bytes() + b"\0")
    folder = place.absolute() / digest.hexdigest()[:12]
    if not folder.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".half-") as half:
            copy = Path(half) / folder.name
            for path in files:
                target = copy / path.relative_to(SOURCE)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            (copy / records.COMMIT_FILE).write_text(f"{commit}\n")
            (copy / CHANGES_FILE).write_text(changes)
            copy.rename(folder)
    return Code(folder, commit)


def _belongs(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _changes() -> str:
    """How the tracked files differ from the commit; empty where there is no git. New files are in the copy itself."""
    command = ["git", "-C", str(SOURCE), "diff", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
