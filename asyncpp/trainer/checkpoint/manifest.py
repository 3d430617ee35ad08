"""What a checkpoint holds: manifest.json, with the checksums of every file and of itself.

Every rank leaves a record of its file beside it, and the manifest, written when all are there, joins them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from asyncpp import records
from asyncpp.sealed import seal, unseal
from asyncpp.trainer.checkpoint.names import MANIFEST_FILE, is_file_name, is_tensor_name, step_of
from asyncpp.trainer.checkpoint.tensor_file import DTYPES, FileRecord, TensorRecord

FORMAT = 1


class CheckpointDamaged(Exception):
    """A checkpoint that is not, bit for bit, what was written. The message is one line: the file, and what is wrong."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} {what}")
        self.path = path


@dataclass(frozen=True)
class CheckpointInfo:
    """What goes with the tensors; plain JSON values.

    step: updates done. config: the scientific configuration. counters: whatever else the trainer goes on from
    (position in the data and in metrics.jsonl, random generators, steps skipped in a row).
    world: the stages and replicas that wrote it, for whoever inspects it. val_loss: the last one, for keep_best.
    """

    step: int
    config: dict[str, Any]
    counters: dict[str, Any] = field(default_factory=dict)
    world: dict[str, Any] = field(default_factory=dict)
    val_loss: float | None = None

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError for what JSON can't hold, NaN included."""
        json.dumps(asdict(self), allow_nan=False)


@dataclass(frozen=True)
class Manifest:
    """files: in order of rank."""

    info: CheckpointInfo
    files: tuple[FileRecord, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        content = {"format": FORMAT, "config_hash": records.config_hash(self.info.config), **asdict(self)}
        records.write_atomically(folder / MANIFEST_FILE, seal(content))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of ``folder``. CheckpointDamaged if missing or differs in one bit from what was written."""
        path = folder / MANIFEST_FILE
        content = _unsealed(path)
        if content.get("format") != FORMAT:
            raise CheckpointDamaged(path, f"is of format {content.get('format')}; this version reads format {FORMAT}")
        try:
            first, *others = (_file_from(record) for record in content["files"])
            manifest = cls(CheckpointInfo(**content["info"]), (first, *others))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise CheckpointDamaged(path, "does not describe a checkpoint") from None
        if manifest.info.step != step_of(folder):
            raise CheckpointDamaged(path, f"is of step {manifest.info.step}")
        conflict = conflicting_tensor(manifest.files)
        if conflict is not None:
            raise CheckpointDamaged(path, conflict)
        return manifest


def conflicting_tensor(files: tuple[FileRecord, ...]) -> str | None:
    """What is wrong where copies of one tensor, such as a tied embedding's, differ from file to file; else None."""
    seen: dict[str, tuple[str, TensorRecord]] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            other_file, other = seen.setdefault(name, (file.name, tensor))
            if (tensor.dtype, tensor.shape, tensor.xxh3_128) != (other.dtype, other.shape, other.xxh3_128):
                return f"has two different copies of {name}, in {other_file} and in {file.name}"
    return None


def write_rank_record(path: Path, record: FileRecord) -> None:
    """What a rank has written, for whoever joins the records. Raises OSError."""
    records.write_atomically(path, seal(asdict(record)))


def read_rank_record(path: Path) -> FileRecord:
    """Raises CheckpointDamaged."""
    try:
        return _file_from(_unsealed(path))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointDamaged(path, "does not describe a file") from None


def _unsealed(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        raise CheckpointDamaged(path, "is not a plain file")
    try:
        content = unseal(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointDamaged(path, "is missing") from None
    except OSError as error:
        raise CheckpointDamaged(path, f"cannot be read ({error.strerror})") from None
    except RecursionError:
        content = None
    if content is None:
        raise CheckpointDamaged(path, "differs from its checksum")
    return content


def _file_from(content: Mapping[str, Any]) -> FileRecord:
    """Raises ValueError, KeyError or TypeError for what no writer here has written: names are checked, too."""
    tensors = {}
    for name, tensor in sorted(content["tensors"].items(), key=lambda item: item[1]["start"]):
        if not is_tensor_name(name) or tensor["dtype"] not in DTYPES:
            raise ValueError(name)
        tensors[name] = TensorRecord(**{**tensor, "shape": tuple(tensor["shape"])})
    if not is_file_name(content["name"]):
        raise ValueError(content["name"])
    return FileRecord(**{**content, "tensors": tensors})
