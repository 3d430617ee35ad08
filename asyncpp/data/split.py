"""Which documents are held out."""

from __future__ import annotations

import hashlib


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to the held-out split, which takes about ``fraction`` of all.

    It depends on the text alone, so copies of a document are on one side, whatever the source or its order.
    """
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
