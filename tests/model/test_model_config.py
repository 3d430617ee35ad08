from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from model_cases import SHIPPED_NAMES, SMALL, SMALL_MOE, shipped

from asyncpp.errors import ConfigError
from asyncpp.model.config import LlamaConfig


@pytest.mark.parametrize(
    ("config", "change", "key"),
    [
        (SMALL, {"num_heads": 5}, "model.num_heads"),  # does not divide the width
        (SMALL, {"num_kv_heads": 4}, "model.num_kv_heads"),  # does not divide the heads
        (SMALL, {"num_heads": 8, "num_kv_heads": 8}, "model.num_heads"),  # heads of 3
        (SMALL, {"num_layers": 0}, "model.num_layers"),
        (SMALL, {"vocab_size": -1}, "model.vocab_size"),
        (SMALL, {"norm_eps": 0.0}, "model.norm_eps"),
        (SMALL_MOE, {"num_kv_heads": 4}, "model.num_kv_heads"),
        (SMALL_MOE, {"num_experts": 0}, "model.num_experts"),
        (SMALL_MOE, {"top_k": 6}, "model.top_k"),
        (SMALL_MOE, {"top_k": 1}, "model.top_k"),
        (SMALL_MOE, {"shared_ffn_size": -1}, "model.shared_ffn_size"),
        (SMALL_MOE, {"load_balancing": -0.1}, "model.load_balancing"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused_in_one_line(config: LlamaConfig, change: dict, key: str) -> None:
    with pytest.raises(ConfigError, match="expected") as refusal:
        replace(config, **change).check("model")
    assert refusal.value.key == key
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_shipped_shapes_pass_and_are_named_after_their_file(name: str) -> None:
    config = shipped(name)
    config.check("model")
    assert config.name == name


def test_config_layout_and_counts_need_no_torch() -> None:
    code = "import asyncpp.model.layout, asyncpp.model.counts, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
