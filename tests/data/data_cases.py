"""Small sources in a temporary folder, and the plainest way to the tokens that they must give."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from asyncpp.data.config import DataConfig, LocalConfig, TokenizerConfig
from asyncpp.data.split import is_held_out
from asyncpp.errors import ConfigError

END = "<|endoftext|>"
FRACTION = 0.2
TEXT = "the state of our union is strong and every citizen knows that peace and commerce with all nations"
WORDS = TEXT.split()


def make_documents(count: int, seed: int = 0, longest: int = 60) -> list[str]:
    random = np.random.default_rng(seed)
    return [f"{number}: " + " ".join(random.choice(WORDS, random.integers(1, longest))) for number in range(count)]


DOCUMENTS = make_documents(120)


def write_json_lines(path: Path, documents: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")


# FineWeb's columns, as its dataset card lists them.
FINEWEB_COLUMNS = ("text", "id", "dump", "url", "date", "file_path", "language", "language_score", "token_count")


def write_parquet(path: Path, documents: list[str], rows_per_group: int = 7) -> None:
    """A file as FineWeb's are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [f"{name} {number}" for number in range(len(documents))] for name in FINEWEB_COLUMNS}
    columns |= {"text": documents, "language_score": [0.9] * len(documents), "token_count": [7] * len(documents)}
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)


def write_hub_layout(folder: Path, documents: list[str]) -> None:
    """A dataset repository, or a local copy of which only one sample was copied: the documents in three files."""
    third = len(documents) // 3
    for number in range(3):
        part = documents[number * third : (number + 1) * third]
        write_parquet(folder / "sample" / "10BT" / f"00{number}_00000.parquet", part)
    card = {"default": "data/*/*", "sample-10BT": "sample/10BT/*"}
    entries = [
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {path}" for name, path in card.items()
    ]
    (folder / "README.md").write_text("---\nconfigs:\n" + "\n".join(entries) + "\n---\n")


@dataclass
class Workshop:
    """Makes raw files and their configs below one temporary folder, all with one small tokenizer."""

    folder: Path
    tokenizer_file: Path

    def config(self, **settings) -> LocalConfig:
        values = {
            "name": "local",
            "root": str(self.folder / "data"),
            "path": str(self.folder / "raw"),
            "sequence_length": 16,
            "vocab_size": 300,
            "num_validation_sequences": 4,
            "document_mask": False,
            "tokenizer": TokenizerConfig("file", str(self.tokenizer_file), END),
            "validation_fraction": FRACTION,
            "shard_tokens": 500,
            "text_column": "text",
        }
        return LocalConfig(**{**values, **settings})

    def write(self, documents: list[str], name: str = "a.jsonl") -> Path:
        path = self.folder / "raw" / name
        write_json_lines(path, documents)
        return path

    def expected(self, documents: list[str]) -> dict[str, list[int]]:
        """The tokens of both splits, by the plainest means."""
        tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        tokenizer.encode_special_tokens = True
        splits: dict[str, list[int]] = {"train": [], "validation": []}
        for text in documents:
            if ids := tokenizer.encode(text, add_special_tokens=False).ids:
                split = splits["validation" if is_held_out(text, FRACTION) else "train"]
                split.extend([*ids, tokenizer.token_to_id(END)])
        return splits


def refusal(function: Callable[[DataConfig], object], config: DataConfig) -> str:
    """The one line with which ``function`` refuses ``config``."""
    with pytest.raises(ConfigError) as refused:
        function(config)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def stored(folder: Path) -> dict[str, list[int]]:
    """The tokens of both splits in a prepared folder, read by NumPy alone."""
    return {
        split: [int(token) for path in sorted(folder.glob(f"{split}-*.npy")) for token in np.load(path)]
        for split in ("train", "validation")
    }


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a prepared folder, but for the memory of what was verified."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "verified.json"}
