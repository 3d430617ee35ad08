"""Reading a checkpoint: tensor by tensor, each from whatever file has it, and checked as it is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from asyncpp import records
from asyncpp.errors import ConfigError
from asyncpp.trainer.checkpoint.manifest import CheckpointDamaged, CheckpointInfo, Manifest
from asyncpp.trainer.checkpoint.names import step_folders
from asyncpp.trainer.checkpoint.tensor_file import TensorRecord, bytes_of, damage, header_damage


class Checkpoint:
    """An open checkpoint. Files are mapped when a tensor of theirs is first read: a rank opens those that it needs."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._file_of = {name: file for file in manifest.files for name in file.tensors}
        self._open: dict[str, Any] = {}

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Raises CheckpointDamaged for a manifest or a header that differs; tensors are checked as they are read."""
        manifest = Manifest.read(folder)
        for file in manifest.files:
            _refuse(folder / file.name, header_damage(folder / file.name, file))
        return cls(folder, manifest)

    @property
    def info(self) -> CheckpointInfo:
        return self.manifest.info

    @property
    def names(self) -> list[str]:
        """Of every tensor, each once."""
        return list(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def record(self, name: str) -> TensorRecord:
        """Shape, dtype and checksum. Raises ConfigError where there is no such tensor."""
        if name not in self._file_of:
            raise ConfigError("resume", self.folder, f"this checkpoint has no tensor {name}")
        return self._file_of[name].tensors[name]

    def read(self, name: str) -> Tensor:
        """The tensor ``name`` in host memory, mapped from its file: copy it to where it is to be changed.

        Raises ConfigError where there is none, CheckpointDamaged where it differs from what was written.
        """
        record = self.record(name)
        path = self.folder / self._file_of[name].name
        try:
            if path.name not in self._open:
                self._open[path.name] = safe_open(path, framework="pt")
            tensor = self._open[path.name].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointDamaged(path, f"cannot be read ({' '.join(str(error).split())})") from None
        if xxhash.xxh3_128_hexdigest(bytes_of(tensor)) != record.xxh3_128:
            raise CheckpointDamaged(path, f"differs from its checksum in {name}")
        return tensor

    def verify(self) -> None:
        """Read every byte. Raises CheckpointDamaged naming the first file that differs."""
        for file in self.manifest.files:
            _refuse(self.folder / file.name, damage(self.folder / file.name, file))

    def require_same_config(self, config: Mapping[str, Any], may_differ: Sequence[str]) -> None:
        """Raise ConfigError, naming every key, unless the checkpoint was made with ``config``.

        config: the scientific one. may_differ: keys that do not count.
        """
        differing = [d for d in records.differences(self.info.config, _as_json(config)) if d[0] not in may_differ]
        if differing:
            key, theirs, ours = differing[0]
            others = "".join(f"; {key}={theirs} there, {ours} here" for key, theirs, ours in differing[1:])
            raise ConfigError(
                key, ours, f"{self.folder} was made with {key}={theirs}{others}; use resume=never to start anew"
            )


def newest_valid(root: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint below ``root`` whose every byte is as it was written, or None where there is none.

    report: takes a line for each one that is passed over, which names the file and what is wrong with it.
    """
    for folder in step_folders(root):
        try:
            checkpoint = Checkpoint.open(folder)
            checkpoint.verify()
            return checkpoint
        except CheckpointDamaged as error:
            report(f"passing over the checkpoint of step {folder.name}: {error}")
    return None


def _refuse(path: Path, what: str | None) -> None:
    if what is not None:
        raise CheckpointDamaged(path, what)


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` as it comes back from a manifest."""
    return json.loads(json.dumps(config))
