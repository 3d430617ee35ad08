"""JSON that holds its own checksum: of prepared data and of checkpoints, whose files a reader trusts by it."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def seal(content: dict[str, Any]) -> str:
    """``content`` as canonical JSON that holds its own checksum: unseal notices every changed bit."""
    body = json.dumps(content, indent=1, sort_keys=True)
    sha256 = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({**content, "sha256": sha256}, indent=1, sort_keys=True) + "\n"


def unseal(text: bytes) -> dict[str, Any] | None:
    """What was sealed, or None if ``text`` is not exactly what seal wrote."""
    try:
        content = json.loads(text.decode())
        del content["sha256"]
        return content if text == seal(content).encode() else None
    except (ValueError, TypeError, KeyError):
        return None
