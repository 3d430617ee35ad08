"""Whether the files of a folder are what its manifest says. Each file is read once, and again when it was touched."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from asyncpp import records
from asyncpp.data.manifest import MANIFEST_FILE, TOKENIZER_FILE, Manifest, file_sha256
from asyncpp.errors import ConfigError
from asyncpp.sealed import seal, unseal

VERIFIED_FILE = "verified.json"
SETTLED_AFTER_S = 1.0  # file systems' clocks tick in hundredths: a file written just now may change unseen


def verify(folder: Path, manifest: Manifest, *, from_scratch: bool = False) -> None:
    """Raise ConfigError naming the first file that is missing, truncated, changed or swapped.

    What was verified is remembered in the folder with each file's size, times and inode. The time of the last change
    can't be set by a user, so whatever has written to a file or put another in its place, the file is read again.
    from_scratch: read everything, because a disk may have rotted without anybody writing.
    """
    expected = {TOKENIZER_FILE: manifest.tokenizer_sha256}
    for split in manifest.splits.values():
        for shard in split.shards:
            _check_size(folder / shard.name, shard.num_bytes)
            expected[shard.name] = shard.sha256
    manifest_sha256 = file_sha256(folder / MANIFEST_FILE)
    known = {} if from_scratch else _remembered(folder, manifest_sha256)
    verified = {}
    for name, sha256 in expected.items():
        path = folder / name
        stamp = _stamp(path)
        if known.get(name) != stamp:
            if file_sha256(path) != sha256:
                raise _refused(path, "differs from its checksum")
            if time.time() - stamp["changed_ns"] / 1e9 < SETTLED_AFTER_S:
                continue
        verified[name] = stamp
    if verified != known:
        _remember(folder, manifest_sha256, verified)


def _check_size(path: Path, num_bytes: int) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise _refused(path, "is missing") from None
    if found != num_bytes:
        raise _refused(path, f"has {found} bytes instead of {num_bytes}")


def _stamp(path: Path) -> dict[str, int]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        raise _refused(path, "is missing") from None
    return {"bytes": stat.st_size, "written_ns": stat.st_mtime_ns, "changed_ns": stat.st_ctime_ns, "inode": stat.st_ino}


def _remembered(folder: Path, manifest_sha256: str) -> dict[str, dict[str, int]]:
    try:
        content = unseal((folder / VERIFIED_FILE).read_bytes())
    except OSError:
        return {}
    return content["files"] if content and content["manifest_sha256"] == manifest_sha256 else {}


def _remember(folder: Path, manifest_sha256: str, verified: dict[str, dict[str, int]]) -> None:
    content = {"manifest_sha256": manifest_sha256, "files": verified}
    with suppress(OSError):  # a folder that is read-only or full: then everybody who reads it verifies it
        records.write_atomically(folder / VERIFIED_FILE, seal(content))


def _refused(path: Path, what: str) -> ConfigError:
    return ConfigError("data.root", path.parent.parent, f"{path} {what}; remove {path.parent} and prepare it again")
