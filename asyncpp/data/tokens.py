"""Prepared tokens on disk, memory-mapped: opening takes no memory, and the same time for any number of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asyncpp.data.config import DataConfig, MixtureConfig, SourceConfig
from asyncpp.data.manifest import MANIFEST_FILE, Manifest, Split, file_sha256
from asyncpp.data.verify import verify
from asyncpp.errors import ConfigError, require


class TokenStream:
    """The tokens of one split of a source, in order, over as many shards as they take."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.num_tokens = split.num_tokens
        self.num_documents = split.num_documents
        # Plain views of the maps: slicing an np.memmap itself costs a microsecond more.
        self.shards = [np.asarray(np.load(folder / shard.name, mmap_mode="r")) for shard in split.shards]
        self._shard_tokens = split.shards[0].num_tokens if split.shards else 1  # all but the last are this long

    def num_windows(self, sequence_length: int) -> int:
        """Windows of sequence_length + 1 tokens. Neighbours share one, so every token but the first is a label once.

        What is left over at the end, less than sequence_length tokens, is in no window.
        """
        return max(self.num_tokens - 1, 0) // sequence_length

    def windows(self, indices: NDArray[np.int64], sequence_length: int) -> NDArray[np.int64]:
        """The windows ``indices``, each below num_windows: (n,) -> (n, sequence_length + 1)."""
        length = sequence_length + 1
        result = np.empty((len(indices), length), np.int64)
        for row, start in enumerate((indices * sequence_length).tolist()):
            number, offset = divmod(start, self._shard_tokens)
            piece = self.shards[number][offset : offset + length]
            result[row] = piece if len(piece) == length else self.slice(start, start + length)
        return result

    def slice(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Tokens start to stop, a copy, from as many shards as they lie in."""
        pieces = []
        while start < stop:
            number, offset = divmod(start, self._shard_tokens)
            pieces.append(self.shards[number][offset : offset + stop - start])
            start += len(pieces[-1])
        return np.concatenate(pieces)


@dataclass(frozen=True)
class PreparedSource:
    """One source. weight: its share of the sequences. digest: names its tokens, whatever they are called."""

    name: str
    weight: float
    digest: str
    train: TokenStream
    validation: TokenStream


@dataclass(frozen=True)
class Tokens:
    """What a run reads. Token ids are below vocab_size; end_of_document is the id that ends a document."""

    sources: tuple[PreparedSource, ...]
    vocab_size: int
    end_of_document: int

    @property
    def digest(self) -> str:
        """Names the tokens of all sources."""
        return _joined([source.digest for source in self.sources])


def data_digest(config: DataConfig) -> str:
    """Names the prepared tokens of ``config``, whatever they are called. Raises ConfigError where there are none."""
    names = config.weights if isinstance(config, MixtureConfig) else [config.name]
    for name in names:
        Manifest.read(config.folder_of(name))
    return _joined([file_sha256(config.folder_of(name) / MANIFEST_FILE) for name in names])


def _joined(digests: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def open_tokens(config: DataConfig) -> Tokens:
    """The prepared tokens of ``config``. ConfigError if they are missing, damaged, or were made in another way."""
    weights = config.weights if isinstance(config, MixtureConfig) else {config.name: 1.0}
    manifests = {name: Manifest.read(config.folder_of(name)) for name in weights}
    first, *others = manifests.values()
    if isinstance(config, SourceConfig):
        first.check(config)
    for name, manifest in manifests.items():
        _check_vocabulary(config, name, manifest)
        verify(config.folder_of(name), manifest)
    for name, other in zip(list(weights)[1:], others, strict=True):
        same = (other.tokenizer_sha256, other.end_of_document) == (first.tokenizer_sha256, first.end_of_document)
        accepted = f"it was prepared with another tokenizer than {next(iter(weights))}"
        require(same, f"data.weights.{name}", weights[name], accepted)
    sources = tuple(
        PreparedSource(
            name=name,
            weight=weights[name],
            digest=file_sha256(config.folder_of(name) / MANIFEST_FILE),
            train=TokenStream(config.folder_of(name), manifest.splits["train"]),
            validation=TokenStream(config.folder_of(name), manifest.splits["validation"]),
        )
        for name, manifest in manifests.items()
    )
    return Tokens(sources, config.vocab_size, first.end_of_document)


def end_of_document(config: DataConfig) -> int:
    """The id of the token that ends a document of ``config``, whose sources all have the same."""
    name = next(iter(config.weights)) if isinstance(config, MixtureConfig) else config.name
    return Manifest.read(config.folder_of(name)).end_of_document


def _check_vocabulary(config: DataConfig, name: str, manifest: Manifest) -> None:
    largest = max(split.largest_token for split in manifest.splits.values())
    if largest >= config.vocab_size:
        accepted = f"expected more than {largest}, the largest token id in {config.folder_of(name)}"
        raise ConfigError("data.vocab_size", config.vocab_size, accepted)
