"""Writes the documents of one split as shards, and can go on where an earlier process had come to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from asyncpp.data.manifest import Shard, Split, file_sha256


class SplitWriter:
    """Appends documents to ``<name>-00000.npy``, ``<name>-00001.npy`` ... in ``folder``, ``shard_tokens`` in each.

    begun: the finished shards and the counts at the last ``save`` of an earlier writer; what that one wrote
    afterwards is dropped, so the files come out the same however often the work was broken off.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype, shard_tokens: int, begun: Split) -> None:
        self._folder = folder
        self._name = name
        self._dtype = dtype
        self._shard_tokens = shard_tokens
        self._shards = list(begun.shards)
        self._num_documents = begun.num_documents
        self._largest_token = begun.largest_token
        self.num_tokens = begun.num_tokens
        self._in_shard = begun.num_tokens - sum(shard.num_tokens for shard in begun.shards)
        self._file = self._open_shard()

    def write(self, document: NDArray[np.unsignedinteger]) -> None:
        """Append a document, its end-of-document token included."""
        self._num_documents += 1
        self.num_tokens += len(document)
        self._largest_token = max(self._largest_token, int(document.max()))
        while len(document):
            piece = document[: self._shard_tokens - self._in_shard]
            self._file.write(piece.data)
            self._in_shard += len(piece)
            document = document[len(piece) :]
            if self._in_shard == self._shard_tokens:
                self._close_shard()
                self._file = self._open_shard()

    def save(self) -> Split:
        """Bring everything to the disk and return where a later writer can begin."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return Split(self._num_documents, self.num_tokens, self._largest_token, tuple(self._shards))

    def finish(self) -> Split:
        """Close the last shard, which may be shorter, and return what was written."""
        if self._in_shard:
            self._file.seek(0)
            self._write_header(self._in_shard)
            self._close_shard()
        else:
            self._file.close()
            self._path.unlink()
        return Split(self._num_documents, self.num_tokens, self._largest_token, tuple(self._shards))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._name}-{len(self._shards):05d}.npy"

    def _open_shard(self) -> BinaryIO:
        self._file = self._path.open("r+b" if self._in_shard else "wb")
        self._write_header(self._shard_tokens)  # the last shard's is written again, with its own length
        self._file.truncate(self._file.tell() + self._in_shard * self._dtype.itemsize)
        self._file.seek(0, os.SEEK_END)
        return self._file

    def _write_header(self, num_tokens: int) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (num_tokens,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def _close_shard(self) -> None:
        self.save()
        self._file.close()
        path = self._path
        self._shards.append(Shard(path.name, self._in_shard, path.stat().st_size, file_sha256(path)))
        self._in_shard = 0
