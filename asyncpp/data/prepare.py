"""Text to tokens, once: documents -> token ids with an end -> shards of a fixed size and a manifest."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from asyncpp.data.config import DataConfig
from asyncpp.data.manifest import SPLITS, Manifest, Shard, Split, file_sha256
from asyncpp.data.sources import EmbeddedSource
from asyncpp.data.tokens import check_recipe
from asyncpp.errors import ConfigError

Progress = Callable[[str], None]
"""Called with a line about what has been done so far."""

DOCUMENTS_PER_BLOCK = 32


def prepare(config: DataConfig, progress: Progress = lambda line: None) -> Manifest:
    """Prepare the tokens of ``config`` unless they are there. A second process that asks at once waits for the first.

    The folder ``config.folder`` appears complete or not at all.
    """
    folder = config.folder
    if not folder.exists():
        with _locked(config):
            if not folder.exists():
                _prepare(config, progress)
    manifest = Manifest.read(folder)
    check_recipe(config, manifest)
    return manifest


@contextmanager
def _locked(config: DataConfig) -> Iterator[None]:
    """Hold the lock of ``config.folder``; a process that dies lets it go."""
    try:
        Path(config.root).mkdir(parents=True, exist_ok=True)
        file = (Path(config.root) / f".{config.name}.lock").open("w")
    except OSError as error:
        raise ConfigError("data.root", config.root, f"expected a writable folder ({error.strerror})") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prepare(config: DataConfig, progress: Progress) -> None:
    from asyncpp.data.tokenizer import end_of_document_id, read_tokenizer, train_tokenizer

    source = EmbeddedSource(config)
    partial = Path(config.root) / f".{config.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    documents = list(source.documents())
    held_out = [is_held_out(text, config.validation_fraction) for text in documents]

    progress(f"training a tokenizer of {config.vocab_size} entries on {config.name}")
    training = (text for text, held in zip(documents, held_out, strict=True) if not held)
    train_tokenizer(training, config.vocab_size, config.tokenizer.end_of_document).save(str(partial / "tokenizer.json"))
    tokenizer = read_tokenizer(partial / "tokenizer.json")
    end = end_of_document_id(tokenizer, config.tokenizer.end_of_document)

    dtype = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32)
    writers = {split: _SplitWriter(partial, split, dtype, config.shard_tokens) for split in SPLITS}
    num_empty = 0
    pairs = iter(zip(documents, held_out, strict=True))
    num_done = 0
    while block := list(islice(pairs, DOCUMENTS_PER_BLOCK)):
        encodings = tokenizer.encode_batch_fast([text for text, _ in block], add_special_tokens=False)
        for encoding, (_, held) in zip(encodings, block, strict=True):
            if encoding.ids:
                writers["validation" if held else "train"].write(np.array([*encoding.ids, end], dtype))
            else:
                num_empty += 1
        num_done += len(block)
        progress(f"tokenizing {config.name}: {num_done} of {len(documents)} documents")
    Manifest(
        recipe=config.recipe(),
        revision=source.revision(),
        dtype=dtype.name,
        vocab_size=tokenizer.get_vocab_size(),
        end_of_document=end,
        tokenizer_sha256=file_sha256(partial / "tokenizer.json"),
        num_empty_documents=num_empty,
        splits={name: writer.close() for name, writer in writers.items()},
    ).write(partial)
    partial.rename(config.folder)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to the held-out split. It depends on its text alone, so copies stay together."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


class _SplitWriter:
    """Writes documents as .npy shards of ``shard_tokens`` tokens each; the last one is shorter."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype, shard_tokens: int) -> None:
        self._folder = folder
        self._name = name
        self._dtype = dtype
        self._shard_tokens = shard_tokens
        self._shards: list[Shard] = []
        self._file: BinaryIO | None = None
        self._in_shard = 0
        self._num_documents = 0
        self._num_tokens = 0
        self._largest = 0

    def write(self, tokens: NDArray[np.unsignedinteger]) -> None:
        """Append one document, its end included."""
        self._num_documents += 1
        self._num_tokens += len(tokens)
        self._largest = max(self._largest, int(tokens.max()))
        while len(tokens):
            if self._file is None:
                self._file = self._path.open("wb")
                _write_header(self._file, self._dtype, self._shard_tokens)
            piece, tokens = np.split(tokens, [self._shard_tokens - self._in_shard])
            self._file.write(piece.tobytes())
            self._in_shard += len(piece)
            if self._in_shard == self._shard_tokens:
                self._close_shard()

    def close(self) -> Split:
        if self._file is not None:
            self._close_shard()
        return Split(self._num_documents, self._num_tokens, self._largest, tuple(self._shards))

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._name}-{len(self._shards):05d}.npy"

    def _close_shard(self) -> None:
        assert self._file is not None
        if self._in_shard < self._shard_tokens:
            self._file.seek(0)
            _write_header(self._file, self._dtype, self._in_shard)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = self._path
        self._shards.append(Shard(path.name, self._in_shard, path.stat().st_size, file_sha256(path)))
        self._file, self._in_shard = None, 0


def _write_header(file: BinaryIO, dtype: np.dtype, num_tokens: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (num_tokens,)}
    np.lib.format.write_array_header_1_0(file, header)
