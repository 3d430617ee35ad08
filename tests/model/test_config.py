from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from asyncpp.errors import ConfigError
from asyncpp.model.config import LlamaConfig


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"num_heads": 5}, "model.num_heads"),  # does not divide the width
        ({"num_kv_heads": 4}, "model.num_kv_heads"),  # does not divide the heads
        ({"num_heads": 8, "num_kv_heads": 8}, "model.num_heads"),  # heads of 3
        ({"num_layers": 0}, "model.num_layers"),
        ({"vocab_size": -1}, "model.vocab_size"),
        ({"norm_eps": 0.0}, "model.norm_eps"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused_in_one_line(small: LlamaConfig, change: dict, key: str) -> None:
    with pytest.raises(ConfigError, match="expected") as refusal:
        replace(small, **change).check("model")
    assert refusal.value.key == key
    assert "\n" not in str(refusal.value)


def test_a_sound_shape_passes(small: LlamaConfig) -> None:
    small.check("model")


def test_the_config_and_the_layout_need_no_torch() -> None:
    code = "import asyncpp.model.layout, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
