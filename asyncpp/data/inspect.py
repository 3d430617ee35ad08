"""What prepared tokens hold: counts, a census of documents, decoded beginnings, and every byte checked.

python -m asyncpp.data.inspect data=sotu
python -m asyncpp.data.inspect data=local data.name=mine num_samples=5 sample_tokens=100 json=true
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncpp.data.config import DataConfig, MixtureConfig, SourceConfig
from asyncpp.data.manifest import TOKENIZER_FILE, Manifest
from asyncpp.data.options import Options, print_json, run_data_command
from asyncpp.data.tokenizer import read_tokenizer
from asyncpp.data.tokens import TokenStream
from asyncpp.data.verify import verify
from asyncpp.errors import EXIT_DONE, EXIT_FAILED

CHUNK_TOKENS = 2**24  # looked at together: memory does not grow with the data


def inspect(folder: Path, num_samples: int, sample_tokens: int) -> dict[str, Any]:
    """Everything about the prepared tokens in ``folder``, as plain JSON values. ConfigError if they are damaged."""
    manifest = Manifest.read(folder)
    verify(folder, manifest, from_scratch=True)
    tokenizer = read_tokenizer(folder / TOKENIZER_FILE)
    report = {"folder": str(folder), **asdict(manifest), "splits": {}}
    for name, split in manifest.splits.items():
        stream = TokenStream(folder, split)
        used, largest = _ids_used(stream, manifest.vocab_size)
        starts, census = _census(stream, manifest.end_of_document, num_samples)
        report["splits"][name] = {
            "num_documents": split.num_documents,
            "num_tokens": split.num_tokens,
            "num_bytes": sum(shard.num_bytes for shard in split.shards),
            "num_shards": len(split.shards),
            "num_ids_used": int(used.sum()),
            "largest_token": largest,
            "end_of_document_census": census,
            "samples": [tokenizer.decode(_head(stream, start, sample_tokens, manifest)) for start in starts],
        }
    return report


def is_sound(report: dict[str, Any]) -> bool:
    """Whether the tokens bear out what the manifest says of them."""
    return all(
        split["end_of_document_census"]["num_ends"] == split["num_documents"]
        and split["end_of_document_census"]["last_token_ends_document"]
        and split["largest_token"] < report["vocab_size"]
        for split in report["splits"].values()
    )


def _ids_used(stream: TokenStream, vocab_size: int) -> tuple[NDArray[np.bool_], int]:
    """Which ids of the vocabulary occur, and the largest id of all."""
    used, largest = np.zeros(vocab_size, bool), 0
    for shard in stream.shards:
        for start in range(0, len(shard), CHUNK_TOKENS):
            chunk = shard[start : start + CHUNK_TOKENS]
            largest = max(largest, int(chunk.max()))
            used[chunk[chunk < vocab_size]] = True
    return used, largest


def _census(stream: TokenStream, end_of_document: int, num_samples: int) -> tuple[list[int], dict[str, Any]]:
    """Where the first documents begin, and how many ends there are and how far they lie apart, in tokens."""
    num_ends, previous, shortest, longest, position = 0, -1, stream.num_tokens, 0, 0
    starts = [0] if stream.num_tokens else []
    last_token = end_of_document
    for shard in stream.shards:
        for start in range(0, len(shard), CHUNK_TOKENS):
            chunk = shard[start : start + CHUNK_TOKENS]
            ends = np.flatnonzero(chunk == end_of_document) + position
            position += len(chunk)
            last_token = int(chunk[-1])
            if len(ends):
                lengths = np.diff(ends, prepend=previous)
                shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
                starts += [int(end) + 1 for end in ends[: max(num_samples - len(starts), 0)]]
                num_ends, previous = num_ends + len(ends), int(ends[-1])
    census = {
        "num_ends": num_ends,
        "last_token_ends_document": last_token == end_of_document,
        "shortest_tokens": shortest if num_ends else 0,
        "mean_tokens": stream.num_tokens / num_ends if num_ends else 0.0,
        "longest_tokens": longest,
    }
    return [start for start in starts[:num_samples] if start < stream.num_tokens], census


def _head(stream: TokenStream, start: int, num_tokens: int, manifest: Manifest) -> list[int]:
    """The first tokens of the document that begins at ``start``."""
    tokens = stream.slice(start, min(start + num_tokens, stream.num_tokens)).tolist()
    return tokens[: tokens.index(manifest.end_of_document)] if manifest.end_of_document in tokens else tokens


def _command(config: DataConfig, options: Options) -> int:
    if isinstance(config, SourceConfig):
        Manifest.read(config.folder).check(config)
    sources = list(config.weights) if isinstance(config, MixtureConfig) else [config.name]
    lengths = (options["num_samples"], options["sample_tokens"])
    reports = {name: inspect(config.folder_of(name), *lengths) for name in sources}
    if options["json"]:
        print_json(reports)
    else:
        for report in reports.values():
            _print(report)
    return EXIT_DONE if all(map(is_sound, reports.values())) else EXIT_FAILED


def _print(report: dict[str, Any]) -> None:
    print(f"{report['folder']}: every byte is as it was written; revision {report['revision']}, {report['dtype']}")
    print(f"  {report['vocab_size']:,} token ids, of which {report['end_of_document']} ends a document")
    print(f"  {report['num_empty_documents']:,} empty and {report['num_repaired_documents']:,} repaired documents")
    for name, split in report["splits"].items():
        census = split["end_of_document_census"]
        lengths = (census["shortest_tokens"], census["mean_tokens"], census["longest_tokens"])
        megabytes = split["num_bytes"] / 1e6
        print(f"{name}: {split['num_tokens']:,} tokens, {megabytes:,.1f} MB in {split['num_shards']} shards")
        print(f"  {split['num_documents']:,} documents and {census['num_ends']:,} ends of documents")
        print("  shortest {:,}, mean {:,.0f}, longest {:,} tokens".format(*lengths))
        print(f"  {split['num_ids_used']:,} of the token ids occur")
        for sample in split["samples"]:
            print(f"  | {sample!r}")


def main() -> int:
    return run_data_command(
        "inspect", __doc__ or "", {"num_samples": int, "sample_tokens": int, "json": bool}, _command
    )


if __name__ == "__main__":
    sys.exit(main())
