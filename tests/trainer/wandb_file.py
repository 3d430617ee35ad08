"""What Weights & Biases wrote offline, read back: a LevelDB log of protocol buffers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK_BYTES = 32768
HEADER = struct.Struct("<IHB")  # checksum, length, kind of a chunk
FILE_HEADER_BYTES = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read_records(path: Path) -> list[Record]:
    return [Record.FromString(chunk) for chunk in _records(path.read_bytes())]


def history(records: list[Record]) -> list[dict[str, Any]]:
    """The logged rows, without the loss figure and what wandb adds to them."""
    rows = [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    return [{key: value for key, value in row.items() if not key.startswith(("_", "loss_figure"))} for row in rows]


def summary(records: list[Record]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for record in records:
        for item in record.summary.update:
            values[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    return values


def _records(data: bytes) -> Iterator[bytes]:
    position, whole = FILE_HEADER_BYTES, b""
    while position + HEADER.size <= len(data):
        left_in_block = BLOCK_BYTES - position % BLOCK_BYTES
        if left_in_block < HEADER.size:
            position += left_in_block
            continue
        _, length, kind = HEADER.unpack_from(data, position)
        position += HEADER.size
        chunk = data[position : position + length]
        whole = chunk if kind in (FULL, FIRST) else whole + chunk
        position += length
        if kind in (FULL, LAST):
            yield whole
