"""Prepared tokens on disk, memory-mapped: opening takes no memory and the same time for any number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from asyncpp.data.config import DataConfig
from asyncpp.data.manifest import Manifest, Split, file_sha256
from asyncpp.errors import ConfigError, require


class TokenStream:
    """The tokens of one split, in order, over as many shards as they take."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.num_tokens = split.num_tokens
        self.num_documents = split.num_documents
        self._shards = [_open_shard(folder / shard.name, shard.num_tokens) for shard in split.shards]
        self._shard_tokens = split.shards[0].num_tokens if split.shards else 1  # all but the last are this long

    def num_windows(self, sequence_length: int) -> int:
        """Windows of sequence_length + 1 tokens. Neighbours share one, so every token but the first is a label once."""
        return max(self.num_tokens - 1, 0) // sequence_length

    def windows(self, indices: NDArray[np.int64], sequence_length: int) -> NDArray[np.int64]:
        """The windows ``indices``, each below num_windows: (..., ) -> (len(indices), sequence_length + 1)."""
        length = sequence_length + 1
        result = np.empty((len(indices), length), np.int64)
        shards, offsets = np.divmod(indices * sequence_length, self._shard_tokens)
        for shard in np.unique(shards):
            tokens = self._shards[shard]
            rows = np.flatnonzero((shards == shard) & (offsets + length <= len(tokens)))
            if len(rows):
                result[rows] = sliding_window_view(tokens, length)[offsets[rows]]
        for row in np.flatnonzero(offsets + length > self._shard_tokens):  # these go on in the next shards
            result[row] = self._slice(shards[row], offsets[row], length)
        return result

    def _slice(self, shard: int, offset: int, length: int) -> NDArray[np.unsignedinteger]:
        pieces = []
        while length:
            piece = self._shards[shard][offset : offset + length]
            pieces.append(piece)
            shard, offset, length = shard + 1, 0, length - len(piece)
        return np.concatenate(pieces)


@dataclass(frozen=True)
class Tokens:
    """What a source was prepared to. Token ids are below vocab_size; end_of_document is the id that ends a document."""

    train: TokenStream
    validation: TokenStream
    vocab_size: int
    end_of_document: int


def open_tokens(config: DataConfig) -> Tokens:
    """The prepared tokens of ``config``. ConfigError if they are missing, damaged or were made in another way."""
    folder = config.folder
    manifest = Manifest.read(folder)
    check_recipe(config, manifest)
    for split in manifest.splits.values():
        require(
            split.largest_token < config.vocab_size,
            "data.vocab_size",
            config.vocab_size,
            f"expected more than {split.largest_token}, the largest token id in {folder}",
        )
        for shard in split.shards:
            _check_file(folder / shard.name, shard.num_bytes, shard.sha256)
    return Tokens(
        train=TokenStream(folder, manifest.splits["train"]),
        validation=TokenStream(folder, manifest.splits["validation"]),
        vocab_size=config.vocab_size,
        end_of_document=manifest.end_of_document,
    )


def check_recipe(config: DataConfig, manifest: Manifest) -> None:
    """ConfigError naming the first setting of ``config`` that the prepared tokens were not made with."""
    for key, wanted, found in _differences(config.recipe(), manifest.recipe):
        raise ConfigError(
            f"data.{key}",
            wanted,
            f"{config.folder} was prepared with {found}; give another data.root, or remove that folder",
        )


def _differences(wanted: dict, found: dict, prefix: str = ""):
    for key in wanted | found:
        ours, theirs = wanted.get(key), found.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _differences(ours, theirs, f"{prefix}{key}.")
        elif ours != theirs:
            yield f"{prefix}{key}", ours, theirs


def _open_shard(path: Path, num_tokens: int) -> NDArray[np.unsignedinteger]:
    tokens = np.load(path, mmap_mode="r")
    require(tokens.shape == (num_tokens,), "data.root", path.parent.parent, f"{path} has shape {tokens.shape}")
    return np.asarray(tokens)  # a plain view of the map: slicing an np.memmap costs a microsecond more


def _check_file(path: Path, num_bytes: int, sha256: str) -> None:
    root = path.parent.parent
    again = f"remove {path.parent} and prepare it again"
    if not path.is_file():
        raise ConfigError("data.root", root, f"{path} is missing; {again}")
    if path.stat().st_size != num_bytes:
        raise ConfigError("data.root", root, f"{path} has {path.stat().st_size} bytes, not {num_bytes}; {again}")
    if file_sha256(path) != sha256:
        raise ConfigError("data.root", root, f"{path} differs from its checksum; {again}")
