from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from model_cases import SHIPPED_NAMES, SMALL, SMALL_MOE, call, leaves_of, random_tokens, shipped
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from asyncpp.model.config import LlamaConfig
from asyncpp.model.counts import flops_per_token, parameter_counts
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.model.llama import build


@pytest.mark.parametrize(("name", "total"), [("135m", 134_515_008), ("360m", 361_821_120)])
def test_smollm2_is_counted_exactly(name: str, total: int) -> None:
    assert parameter_counts(shipped(name)).total == total


@pytest.mark.parametrize(("name", "billions"), [("1b", 1), ("3b", 3), ("2b_moe", 2), ("10b", 10)])
def test_sizes_keep_the_promise_of_their_names(name: str, billions: int) -> None:
    assert parameter_counts(shipped(name)).total == pytest.approx(billions * 1e9, rel=0.03)


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_counts_are_those_of_the_built_model(name: str) -> None:
    config = shipped(name)
    start = time.process_time()
    model = build(config)
    assert time.process_time() - start < 5.0
    aliases = tied_aliases(config)
    held = {name: tuple(value.shape) for name, value in model.named_parameters() if name not in aliases}
    assert held == {info.name: info.shape for info in parameter_infos(config)}
    counts = parameter_counts(config)
    assert counts.total == sum(model.get_parameter(name).numel() for name in held)
    embeddings = [model.get_parameter(name).numel() for name in held if name in ("embedding.weight", "head.weight")]
    assert counts.total - counts.non_embedding == sum(embeddings) == counts.active - counts.active_non_embedding


def test_a_token_meets_top_k_experts() -> None:
    counts = parameter_counts(SMALL_MOE)
    all_met = parameter_counts(replace(SMALL_MOE, top_k=SMALL_MOE.num_experts))
    assert all_met.active == all_met.total == counts.total
    unmet = SMALL_MOE.num_experts - SMALL_MOE.top_k
    expert = 3 * SMALL_MOE.ffn_size * SMALL_MOE.hidden_size
    assert counts.total - counts.active == SMALL_MOE.num_layers * unmet * expert


def addmm_flops(_sum: list[int], left: list[int], right: list[int], **_: object) -> int:
    """The counter knows the product that makes a new tensor, not the one that adds to its first operand."""
    return 2 * left[0] * left[1] * right[1]


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, tied_embeddings=True), SMALL_MOE])
def test_flops_are_those_that_torch_counts(config: LlamaConfig) -> None:
    tokens, leaves = random_tokens(config, batch=3, sequence=8), leaves_of(config)
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: addmm_flops})
    # The decomposed attention: the fused kernel's backward computes the scores again, which is its own affair.
    with sdpa_kernel(SDPBackend.MATH), counter:
        loss = call(build(config), leaves, tokens, tokens)
        torch.autograd.grad(loss, list(leaves.values()))
    assert counter.get_total_flops() == flops_per_token(config, 8) * tokens.numel()
