from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import SMALL, SMALL_MOE, call, leaves_of, random_tokens
from reference.model.moe_by_loops import mixture_by_loops
from torch import Tensor

from asyncpp.model.auxiliary import Auxiliary, load_metrics
from asyncpp.model.config import LlamaConfig, MoEConfig
from asyncpp.model.llama import build
from asyncpp.model.moe import MixtureOfExperts, Router


def mixture_case(config: MoEConfig, dtype: torch.dtype, batch: int, sequence: int) -> tuple[MixtureOfExperts, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    block = MixtureOfExperts(config).to(dtype)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    shape = (batch, sequence, config.hidden_size)
    return block, torch.randn(shape, dtype=dtype, generator=generator).requires_grad_()


@settings(max_examples=25, deadline=None)
@given(
    num_experts=st.integers(1, 9),
    top_k=st.integers(1, 9),
    shared_ffn_size=st.sampled_from([0, 12]),
    batch=st.integers(1, 3),
    sequence=st.integers(1, 8),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_the_block_is_its_definition(
    num_experts: int, top_k: int, shared_ffn_size: int, batch: int, sequence: int, dtype: torch.dtype
) -> None:
    shape = {"num_experts": num_experts, "top_k": min(top_k, num_experts), "shared_ffn_size": shared_ffn_size}
    config = replace(SMALL_MOE, **shape)
    block, hidden = mixture_case(config, dtype, batch, sequence)
    weights = dict(block.named_parameters())
    auxiliary = Auxiliary()
    output = block(hidden, auxiliary)
    expected, expected_auxiliary = mixture_by_loops(config, weights, hidden)
    assert auxiliary.loss is not None
    rtol, atol = (1e-10, 1e-12) if dtype is torch.float64 else (1e-4, 1e-5)
    torch.testing.assert_close(output, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(auxiliary.loss, expected_auxiliary, rtol=rtol, atol=atol)
    direction = torch.randn_like(output)
    ours = torch.autograd.grad((output * direction).sum() + auxiliary.loss, (hidden, *weights.values()))
    twin = torch.autograd.grad((expected * direction).sum() + expected_auxiliary, (hidden, *weights.values()))
    for mine, other in zip(ours, twin, strict=True):
        torch.testing.assert_close(mine, other, rtol=rtol, atol=atol)


def test_every_choice_is_served() -> None:
    auxiliary = Auxiliary()
    call(build(SMALL_MOE), leaves_of(SMALL_MOE), random_tokens(SMALL_MOE, 3, 5), None, auxiliary)
    assert auxiliary.expert_load is not None
    assert auxiliary.expert_load.shape == (SMALL_MOE.num_layers, SMALL_MOE.num_experts)
    assert auxiliary.expert_load.sum(1).tolist() == [3 * 5 * SMALL_MOE.top_k] * SMALL_MOE.num_layers


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_loads_of_micro_batches_and_stages_add_up_to_the_batchs(cut: int) -> None:
    """What a run records: sums over micro-batches (and replicas), stages one below the other, then the metrics."""
    leaves, tokens = leaves_of(SMALL_MOE), random_tokens(SMALL_MOE, 6, 5)
    whole = Auxiliary()
    call(build(SMALL_MOE), leaves, tokens, None, whole)
    stages = [
        build(SMALL_MOE, range(cut), first=True, last=False),
        build(SMALL_MOE, range(cut, SMALL_MOE.num_layers), first=False, last=True),
    ]
    totals: list[list[Tensor]] = [[], []]
    for micro_batch in tokens.chunk(3):
        hidden = micro_batch
        for stage, loads in zip(stages, totals, strict=True):
            auxiliary = Auxiliary()
            hidden = call(stage, leaves, hidden, None, auxiliary)
            if auxiliary.expert_load is not None:
                loads.append(auxiliary.expert_load)
    batch = torch.cat([torch.stack(loads).sum(0) for loads in totals if loads])
    assert whole.expert_load is not None and torch.equal(batch, whole.expert_load)
    assert load_metrics(batch) == load_metrics(whole.expert_load)


def test_the_auxiliary_loss_does_not_depend_on_micro_batches() -> None:
    model, leaves, tokens = build(SMALL_MOE), leaves_of(SMALL_MOE), random_tokens(SMALL_MOE, 6, 5)
    losses = []
    for num_micro_batches in (1, 2, 3, 6):
        parts = []
        for micro_batch in tokens.chunk(num_micro_batches):
            auxiliary = Auxiliary()
            call(model, leaves, micro_batch, None, auxiliary)
            assert auxiliary.loss is not None
            parts.append(auxiliary.loss)
        losses.append(torch.stack(parts).mean())
    torch.testing.assert_close(torch.stack(losses), losses[0].expand(4), rtol=1e-12, atol=0)


def test_a_balanced_router_costs_its_coefficient() -> None:
    config = replace(SMALL_MOE, num_layers=1, num_experts=4, top_k=4, router_z=0.0)
    auxiliary = Auxiliary()
    call(build(config), leaves_of(config), random_tokens(config), None, auxiliary)
    assert auxiliary.loss is not None
    assert auxiliary.loss.item() == pytest.approx(config.load_balancing, rel=1e-12)


@pytest.mark.parametrize("cut", range(4))
def test_gradients_of_two_stages_are_those_of_one(cut: int) -> None:
    """Each stage differentiates its own auxiliary loss beside what arrives from the next one."""
    tokens, leaves = random_tokens(SMALL_MOE), leaves_of(SMALL_MOE)
    whole = Auxiliary()
    loss = call(build(SMALL_MOE), leaves, tokens, tokens, whole)
    assert whole.loss is not None
    expected = dict(zip(leaves, torch.autograd.grad(loss + whole.loss, list(leaves.values())), strict=True))

    first = build(SMALL_MOE, range(cut), first=True, last=False)
    last = build(SMALL_MOE, range(cut, SMALL_MOE.num_layers), first=False, last=True)
    sent_auxiliary, last_auxiliary = Auxiliary(), Auxiliary()
    sent = call(first, leaves, tokens, None, sent_auxiliary)
    received = sent.detach().requires_grad_()
    objective = call(last, leaves, received, tokens, last_auxiliary)
    if last_auxiliary.loss is not None:
        objective = objective + last_auxiliary.loss
    objective.backward()
    outputs = [sent] if sent_auxiliary.loss is None else [sent, sent_auxiliary.loss]
    torch.autograd.backward(outputs, [received.grad, torch.ones_like(loss)][: len(outputs)])
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_router_scores_in_fp32_whatever_the_stream(autocast: bool) -> None:
    router = Router(SMALL_MOE).to(torch.float32 if autocast else torch.bfloat16)
    torch.nn.init.normal_(router.weight)
    hidden = torch.randn(2, 5, SMALL_MOE.hidden_size, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits, gates, _ = router(hidden)
    assert logits.dtype is gates.dtype is torch.float32
    assert torch.equal(logits, hidden.float() @ router.weight.float().t())


def test_experts_follow_autocast() -> None:
    block, hidden = mixture_case(SMALL_MOE, torch.float32, 2, 7)
    rows, ends = hidden.detach().flatten(0, 1), torch.tensor([3, 5, 9, 9, 14], dtype=torch.int32)
    with torch.autocast("cpu", torch.bfloat16):
        mapped = block.experts.gate(rows, ends)
        assert block(hidden, None).isfinite().all()
    assert mapped.dtype is torch.bfloat16
    assert torch.equal(mapped, block.experts.gate.bfloat16()(rows.bfloat16(), ends))


@pytest.mark.parametrize("config", [SMALL, SMALL_MOE])
def test_a_bf16_model_is_the_fp32_model_rounded(config: LlamaConfig) -> None:
    tokens = random_tokens(config, 3, 8)
    gradients: dict[torch.dtype, dict[str, Tensor]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        leaves, auxiliary = leaves_of(config, dtype), Auxiliary()
        loss = call(build(config), leaves, tokens, tokens, auxiliary)
        assert loss.dtype is torch.float32
        (loss if auxiliary.loss is None else loss + auxiliary.loss).backward()
        gradients[dtype] = {name: leaf.grad.float() for name, leaf in leaves.items() if leaf.grad is not None}
    assert gradients[torch.bfloat16].keys() == gradients[torch.float32].keys()
    for name, exact in gradients[torch.float32].items():
        # A few units of bf16's last place, 2**-8, over three layers; a choice that rounding flips would be far more.
        assert (gradients[torch.bfloat16][name] - exact).norm() < 0.08 * exact.norm()


def test_load_metrics_of_a_balanced_and_of_a_collapsed_layer() -> None:
    balanced, collapsed = torch.full((1, 4), 6), torch.tensor([[24, 0, 0, 0]])
    assert load_metrics(balanced) == pytest.approx(
        {
            "moe/load_max_over_mean": 1.0,
            "moe/load_entropy_fraction": 1.0,
            "moe/idle_experts_fraction": 0.0,
            "moe/dropped_tokens": 0.0,
        }
    )
    assert load_metrics(torch.cat([balanced, collapsed])) == pytest.approx(
        {
            "moe/load_max_over_mean": 4.0,
            "moe/load_entropy_fraction": 0.5,
            "moe/idle_experts_fraction": 0.375,
            "moe/dropped_tokens": 0.0,
        }
    )
