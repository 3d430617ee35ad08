"""Reading the config.json of a transformers model. No torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncpp.errors import ConfigError, require

# What the file means where it leaves out a key that transformers does not default to our value.
DEFAULTS = {"tie_word_embeddings": False, "attention_multiplier": 1.0, "shared_intermediate_size": 0}


def read_hf_config(key: str, folder: Path) -> dict[str, Any]:
    """config.json of ``folder``, with its defaults and with rotary positions where transformers 4 and 5 put them.

    Raises ConfigError for ``key``, whose value ``folder`` is.
    """
    try:
        found = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(key, folder, f"expected a folder with a transformers config.json ({error})") from None
    require(isinstance(found, dict), key, folder, "expected a config.json that holds keys and values")
    scaling = found.get("rope_scaling") or {}
    rope = found.get("rope_parameters") or {
        "rope_theta": found.get("rope_theta", 10000.0),
        "rope_type": scaling.get("rope_type", scaling.get("type", "default")),
    }
    return DEFAULTS | found | {"rope_parameters": rope, "rope_theta": rope["rope_theta"]}
