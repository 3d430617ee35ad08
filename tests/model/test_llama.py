from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_cases import SMALL, SMALL_MOE, call, leaves_of, random_tokens

from asyncpp.model.config import LlamaConfig
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.model.llama import build
from asyncpp.model.rotary import RotaryTables, rotate


@pytest.mark.parametrize("config", [SMALL, SMALL_MOE])
def test_modules_hold_the_listed_parameters_without_values(config: LlamaConfig) -> None:
    model = build(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    listed = [(info.name, info.shape) for info in parameter_infos(config)]
    assert [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()] == listed


def test_a_tied_head_is_not_listed_but_is_called_with_the_embedding() -> None:
    tied = replace(SMALL, tied_embeddings=True)
    listed = {info.name for info in parameter_infos(tied)}
    held = {name for name, _ in build(tied).named_parameters()}
    assert held - listed == set(tied_aliases(tied)) == {"head.weight"}


@pytest.mark.parametrize("config", [SMALL, SMALL_MOE])
@pytest.mark.parametrize("cut", range(4))
def test_stages_in_a_row_are_the_whole_model(config: LlamaConfig, cut: int) -> None:
    tokens, leaves = random_tokens(config), leaves_of(config)
    first = build(config, range(cut), first=True, last=False)
    last = build(config, range(cut, config.num_layers), first=False, last=True)
    names = [name for stage in (first, last) for name, _ in stage.named_parameters()]
    assert names == [info.name for info in parameter_infos(config)]
    hidden = call(first, leaves, tokens)
    assert torch.equal(call(last, leaves, hidden), call(build(config), leaves, tokens))


def test_no_position_sees_a_later_token() -> None:
    model, leaves, tokens = build(SMALL), leaves_of(SMALL), random_tokens(SMALL)
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % SMALL.vocab_size
    before = call(model, leaves, tokens)
    after = call(model, leaves, changed)
    torch.testing.assert_close(after[:, :4], before[:, :4], rtol=0, atol=1e-12)
    assert (after[:, 4:] - before[:, 4:]).abs().amax(-1).min() > 1e-6


def test_the_loss_is_the_mean_cross_entropy_of_the_logits() -> None:
    model, leaves, tokens = build(SMALL), leaves_of(SMALL), random_tokens(SMALL)
    labels = tokens.roll(-1, 1)
    log_probabilities = call(model, leaves, tokens).log_softmax(-1)
    expected = -log_probabilities.gather(-1, labels.unsqueeze(-1)).mean()
    torch.testing.assert_close(call(model, leaves, tokens, labels), expected, rtol=1e-12, atol=0)


def test_rotation_keeps_lengths_and_depends_on_the_distance_only() -> None:
    tables = RotaryTables(head_dim=8, theta=10000.0).tables(12, torch.device("cpu"), torch.float64)
    query, key = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    queries, keys = (rotate(head.expand(1, 1, 12, 8), tables)[0, 0] for head in (query, key))
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(12))
    scores = queries @ keys.T
    for distance in range(-11, 12):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    assert (scores[0, 0] - scores[0, 1]).abs() > 1e-3


def test_tables_first_made_in_inference_mode_serve_a_backward() -> None:
    model, leaves, tokens = build(SMALL), leaves_of(SMALL), random_tokens(SMALL)
    with torch.inference_mode():
        call(model, leaves, tokens)
    call(model, leaves, tokens, tokens).backward()
    assert leaves["layers.0.attention.q.weight"].grad is not None
