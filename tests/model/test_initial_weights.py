from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from model_cases import SMALL, SMALL_MOE

from asyncpp.model.config import LlamaConfig
from asyncpp.model.init import initial_weight, initial_weights
from asyncpp.model.layout import parameter_infos
from asyncpp.model.llama import build
from asyncpp.parameters import Role

both = pytest.mark.parametrize("config", [SMALL, SMALL_MOE])


@both
def test_weights_depend_on_the_seed_and_on_nothing_before_them(config: LlamaConfig) -> None:
    weights = initial_weights(config, seed=0)
    for info, weight in reversed(list(zip(parameter_infos(config), weights, strict=True))):
        assert torch.equal(weight, initial_weight(config, info, seed=0))
        assert info.role is Role.NORM or not torch.equal(weight, initial_weight(config, info, seed=1))


@both
@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_the_stages_of_every_split_start_with_the_same_weights(config: LlamaConfig, num_stages: int) -> None:
    infos = {info.name: info for info in parameter_infos(config)}
    cuts = [config.num_layers * stage // num_stages for stage in range(num_stages + 1)]
    started: dict[str, torch.Tensor] = {}
    for start, end in itertools.pairwise(cuts):
        stage = build(config, range(start, end), first=start == 0, last=end == config.num_layers)
        owned = [infos[name] for name, _ in stage.named_parameters()]
        started |= dict(zip([info.name for info in owned], initial_weights(config, 0, owned), strict=True))
    assert list(started) == list(infos)
    for weight, expected in zip(started.values(), initial_weights(config, 0), strict=True):
        assert torch.equal(weight, expected)


def test_equal_shapes_get_different_values() -> None:
    by_name = {info.name: info for info in parameter_infos(SMALL)}
    first, second = (initial_weight(SMALL, by_name[f"layers.{layer}.mlp.up.weight"], 0) for layer in (0, 1))
    assert not torch.equal(first, second)


@both
def test_deviations_are_the_documented_ones(config: LlamaConfig) -> None:
    wide = replace(config, hidden_size=240, ffn_size=400, vocab_size=1000)
    for info, weight in zip(parameter_infos(wide), initial_weights(wide, seed=0), strict=True):
        if info.role is Role.NORM:
            assert torch.equal(weight, torch.ones(info.shape))
            continue
        writes_to_stream = info.name.endswith(("attention.o.weight", "down.weight"))
        std = wide.init_std / (math.sqrt(2 * wide.num_layers) if writes_to_stream else 1.0)
        deviation = std / math.sqrt(info.num_elements)
        assert abs(weight.mean().item()) < 5 * deviation
        assert abs(weight.std().item() - std) < 5 * deviation / math.sqrt(2)


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    initial_weights(SMALL, seed=0)
    assert torch.equal(before, torch.get_rng_state())
