"""One file of a checkpoint: safetensors, written in one pass with a checksum of the header and of every tensor.

The checksum is XXH3 with 128 bits: it is there against disks and kills, not against whoever can write a manifest too,
and it is ten times as fast as SHA-256, which would take longer than torch.load takes to read the same bytes. Header
and tensors fill a file without a gap, so their checksums cover each of its bytes, and a reader of few tensors checks
what it reads and no more.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash
from torch import Tensor

CHUNK_BYTES = 2**22  # hashed while it is still in the cache
HEADER_ALIGNMENT = 8

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as it was written: its place within the file's data, in bytes, and its checksum."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int
    xxh3_128: str

    def empty(self) -> Tensor:
        """A tensor of this kind without values."""
        return torch.empty(self.shape, dtype=DTYPES[self.dtype], device="meta")


@dataclass(frozen=True)
class FileRecord:
    """A file as it was written. tensors: by name, in the order of the file."""

    name: str
    num_bytes: int
    header_bytes: int
    header_xxh3_128: str
    tensors: dict[str, TensorRecord]


class Layout:
    """Where tensors lie in a file: those of wide elements first, which aligns all of them, then by name.

    tensors: by name; read for shape and dtype only. Equal for equal names, shapes and dtypes.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.places: dict[str, tuple[int, int]] = {}  # start and end within the data, in bytes
        self.dtypes: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        end = 0
        for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
            tensor, start = tensors[name], end
            end = start + tensor.numel() * tensor.element_size()
            self.places[name] = (start, end)
            self.dtypes[name] = DTYPE_NAMES[tensor.dtype]
            self.shapes[name] = tuple(tensor.shape)
        self.num_data_bytes = end
        self.header = self._header()

    @property
    def num_bytes(self) -> int:
        """Of the file."""
        return len(self.header) + self.num_data_bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.header == other.header

    def _header(self) -> bytes:
        entries = {
            name: {"dtype": self.dtypes[name], "shape": self.shapes[name], "data_offsets": place}
            for name, place in self.places.items()
        }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % HEADER_ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; no copy where it is contiguous and in host memory."""
    return tensor.cpu().reshape(-1).view(torch.uint8).numpy().data


def write_tensors(path: Path, layout: Layout, contents: Iterable[memoryview]) -> FileRecord:
    """Write a new file and see it onto the disk. Raises OSError.

    contents: the bytes of each tensor, in the order of the layout; taken one by one.
    """
    tensors = {}
    with path.open("xb") as file:
        file.write(layout.header)
        for (name, (start, end)), content in zip(layout.places.items(), contents, strict=True):
            digest = xxhash.xxh3_128()
            for offset in range(0, end - start, CHUNK_BYTES):
                chunk = content[offset : offset + CHUNK_BYTES]
                digest.update(chunk)
                file.write(chunk)
            tensors[name] = TensorRecord(
                layout.dtypes[name], layout.shapes[name], start, end - start, digest.hexdigest()
            )
        file.flush()
        os.fsync(file.fileno())
    header_xxh3_128 = xxhash.xxh3_128_hexdigest(layout.header)
    return FileRecord(path.name, layout.num_bytes, len(layout.header), header_xxh3_128, tensors)


def header_damage(path: Path, record: FileRecord) -> str | None:
    """What is wrong with a file that can be seen without reading its tensors, or None."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a plain file"
        if status.st_size != record.num_bytes:
            return f"has {status.st_size} bytes instead of {record.num_bytes}"
        with path.open("rb") as file:
            if _digest(file, record.header_bytes) != record.header_xxh3_128:
                return "differs from its checksum in the header"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def damage(path: Path, record: FileRecord) -> str | None:
    """What is wrong with a file, or None where every byte is as it was written. Reads all of it."""
    found = header_damage(path, record)
    if found is not None:
        return found
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(record.header_bytes)
            for name, tensor in record.tensors.items():
                if _digest(file, tensor.num_bytes) != tensor.xxh3_128:
                    return f"differs from its checksum in {name}"
            return "is longer than its tensors" if file.read(1) else None
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _digest(file: BinaryIO, num_bytes: int) -> str:
    """Checksum of the next bytes of ``file``, or of those that are there."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(num_bytes, CHUNK_BYTES)))
    while num_bytes > 0:
        count = file.readinto(buffer[:num_bytes])  # pyright: ignore[reportAttributeAccessIssue]
        if not count:
            break
        digest.update(buffer[:count])
        num_bytes -= count
    return digest.hexdigest()
