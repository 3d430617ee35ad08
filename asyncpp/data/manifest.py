"""What a folder of prepared tokens holds: manifest.json, with the checksum of every file and of itself.

    <data.root>/<data.name>/
        manifest.json          recipe, revision of the source, counts, checksums
        tokenizer.json         what encoded and decodes the tokens
        train-00000.npy ...    shards: plain one-dimensional NumPy arrays of uint16 or uint32
        validation-00000.npy   the held-out documents, likewise

Nothing in it depends on when, where or in how many attempts it was made.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncpp import records
from asyncpp.data.config import SourceConfig
from asyncpp.errors import ConfigError, require
from asyncpp.sealed import seal, unseal

MANIFEST_FILE = "manifest.json"
TOKENIZER_FILE = "tokenizer.json"
SPLITS = ("train", "validation")
FORMAT = 1


@dataclass(frozen=True)
class Shard:
    """One file of tokens. All shards of a split but the last hold equally many."""

    name: str
    num_tokens: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """A run of documents over shards. Every document ends with the end-of-document token."""

    num_documents: int
    num_tokens: int
    largest_token: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Manifest:
    """recipe: what the tokens were made with (SourceConfig.recipe). revision: the version of the source.

    budget_tokens: the budget it was made with; source_exhausted: the source ended before it.
    dtype: ``uint16`` or ``uint32``. end_of_document: id of the token that ends a document.
    num_empty_documents: documents without a token, which were left out. num_repaired_documents: those with invalid
    UTF-8, whose bad bytes became U+FFFD.
    """

    recipe: dict[str, Any]
    revision: str
    budget_tokens: int | None
    source_exhausted: bool
    dtype: str
    vocab_size: int
    end_of_document: int
    tokenizer_sha256: str
    num_empty_documents: int
    num_repaired_documents: int
    splits: dict[str, Split]

    def write(self, folder: Path) -> None:
        records.write_atomically(folder / MANIFEST_FILE, seal({"format": FORMAT, **asdict(self)}))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of ``folder``. ConfigError if it is missing, or differs in one bit from what was written."""
        path, root = folder / MANIFEST_FILE, folder.parent
        again = f"remove {folder} and prepare it again"
        try:
            content = unseal(path.read_bytes())
        except FileNotFoundError:
            what = f"{path} is missing; {again}" if folder.exists() else f"{folder} is not prepared"
            raise ConfigError("data.root", root, f"{what}: python -m asyncpp.data.prepare data=...") from None
        except OSError as error:
            raise ConfigError("data.root", root, f"{path} cannot be read ({error.strerror})") from None
        if content is None:
            raise ConfigError("data.root", root, f"{path} is damaged; {again}")
        require(content.pop("format") == FORMAT, "data.root", root, f"{path} has another version's format; {again}")
        return cls(splits=splits_from(content.pop("splits")), **content)

    def file_names(self) -> set[str]:
        """Every file that belongs to it."""
        shards = {shard.name for split in self.splits.values() for shard in split.shards}
        return {MANIFEST_FILE, TOKENIZER_FILE} | shards

    def summary(self) -> str:
        """What is in it, in one line, and what a user may not have expected."""
        counts = [
            f"{split.num_tokens:,} {name} tokens of {split.num_documents:,} documents"
            for name, split in self.splits.items()
        ]
        notes = []
        if not any(split.num_tokens for split in self.splits.values()):
            notes.append("no document has a token")
        elif not self.splits["validation"].num_documents:
            notes.append("no document was held out: a larger data.validation_fraction would")
        if self.num_empty_documents:
            notes.append(f"{self.num_empty_documents:,} empty documents left out")
        if self.num_repaired_documents:
            notes.append(f"{self.num_repaired_documents:,} documents with invalid characters, replaced by U+FFFD")
        if self.budget_tokens is not None and self.source_exhausted:
            notes.append(f"the source ended before the budget of {self.budget_tokens:,} tokens")
        return "; ".join([", ".join(counts), *notes])

    def check(self, config: SourceConfig) -> None:
        """ConfigError naming the first setting of ``config`` that the prepared tokens were not made with."""
        folder = config.folder
        check_recipe(config.recipe(), self.recipe, folder)
        wanted = config.budget_tokens
        require(
            wanted in (None, self.budget_tokens),
            "data.budget_tokens",
            wanted,
            f"{folder} was prepared with {_shown(self.budget_tokens)}; leave it out to use what is there, "
            "or give another data.root or data.name",
        )
        check_tokenizer(config, self.tokenizer_sha256, folder)


def check_recipe(wanted: dict[str, Any], found: dict[str, Any], folder: Path) -> None:
    """ConfigError naming the first setting in which two recipes differ."""
    for key, ours, theirs in records.differences(wanted, found):
        accepted = f"{folder} was prepared with {_shown(theirs)}; give another data.root or data.name, or remove it"
        raise ConfigError(f"data.{key}", _shown(ours), accepted)


def check_tokenizer(config: SourceConfig, sha256: str, folder: Path) -> None:
    """ConfigError if the file that ``config`` takes its tokenizer from is there and is another than ``folder``'s."""
    file = Path(config.tokenizer.name or "")
    if config.tokenizer.kind == "file" and file.is_file():
        accepted = f"{folder} was prepared with another tokenizer; give another data.root or data.name, or remove it"
        require(file_sha256(file) == sha256, "data.tokenizer.name", file, accepted)


def splits_from(content: dict[str, Any]) -> dict[str, Split]:
    """Splits from their JSON form."""
    return {
        name: Split(**{**split, "shards": tuple(Shard(**shard) for shard in split["shards"])})
        for name, split in content.items()
    }


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shown(value: Any) -> Any:
    return "null" if value is None else value
