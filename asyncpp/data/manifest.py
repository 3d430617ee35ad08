"""manifest.json: what a folder of prepared tokens holds, with the checksum of every file and of itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncpp.errors import ConfigError

FILE_NAME = "manifest.json"
FORMAT = 1
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Shard:
    """One file of tokens, a one-dimensional .npy array."""

    name: str
    num_tokens: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """A run of tokens over shards, in order. Every document ends with the end-of-document token."""

    num_documents: int
    num_tokens: int
    largest_token: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Manifest:
    """recipe: what the tokens were made with (DataConfig.recipe). revision: the version of the source.

    dtype: ``uint16`` or ``uint32``. end_of_document: id of the token that ends a document.
    tokenizer_sha256: checksum of the tokenizer.json beside the manifest.
    """

    recipe: dict[str, Any]
    revision: str
    dtype: str
    vocab_size: int
    end_of_document: int
    tokenizer_sha256: str
    num_empty_documents: int
    splits: dict[str, Split]

    def write(self, folder: Path) -> None:
        (folder / FILE_NAME).write_text(_render({"format": FORMAT, **asdict(self)}), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of ``folder``. ConfigError if it is missing or differs in one bit from what was written."""
        path = folder / FILE_NAME
        try:
            text = path.read_bytes().decode("utf-8")
            content = json.loads(text)
            written = {key: value for key, value in content.items() if key != "sha256"}
            intact = text == _render(written)
        except FileNotFoundError:
            raise ConfigError("data.root", folder.parent, f"expected prepared tokens, but {path} is missing") from None
        except OSError as error:
            raise ConfigError("data.root", folder.parent, f"{path} cannot be read ({error.strerror})") from None
        except (ValueError, AttributeError):
            intact = False
            written = {}
        if not intact:
            raise ConfigError("data.root", folder.parent, f"{path} is damaged; remove {folder} and prepare it again")
        if written.pop("format") != FORMAT:
            raise ConfigError(
                "data.root", folder.parent, f"{path} has another format; remove {folder} and prepare again"
            )
        splits = {
            name: Split(**{**split, "shards": tuple(Shard(**shard) for shard in split["shards"])})
            for name, split in written.pop("splits").items()
        }
        return cls(splits=splits, **written)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _render(content: dict[str, Any]) -> str:
    """The one text form of a manifest: canonical JSON that ends with its own checksum."""
    body = json.dumps(content, indent=1, sort_keys=True)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}, indent=1, sort_keys=True) + "\n"
