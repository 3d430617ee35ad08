from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from asyncpp.model import cross_entropy
from asyncpp.model.cross_entropy import linear_cross_entropy


def case(tokens: int, vocabulary: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, 6, dtype=torch.float64, generator=generator) * scale
    weight = torch.randn(vocabulary, 6, dtype=torch.float64, generator=generator)
    labels = torch.randint(vocabulary, (tokens,), generator=generator)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), labels)


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(1, 23), vocabulary=st.integers(1, 40), chunk=st.integers(1, 30), scale=st.sampled_from([1, 300])
)
def test_loss_and_gradients_are_those_of_the_whole_logits(tokens: int, vocabulary: int, chunk: int, scale: int) -> None:
    hidden, weight, labels = case(tokens, vocabulary, scale=scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "CHUNK_TOKENS", chunk)
        loss = linear_cross_entropy(hidden, weight, labels)
    expected = plain(hidden, weight, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    # The loss is one of several terms: its gradient arrives scaled.
    gradients = torch.autograd.grad(loss / 3, (hidden, weight))
    for ours, theirs in zip(gradients, torch.autograd.grad(expected / 3, (hidden, weight)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_second_backward_over_a_kept_graph_gives_the_same() -> None:
    hidden, weight, labels = case(9, 11)
    loss = linear_cross_entropy(hidden, weight, labels)
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_low_precision_head_has_its_softmax_in_fp32() -> None:
    hidden, weight, labels = case(64, 50, torch.bfloat16)
    loss = linear_cross_entropy(hidden, weight, labels)
    assert loss.dtype is torch.float32
    logits = F.linear(hidden, weight).float()
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels), rtol=1e-6, atol=0)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    exact_hidden, exact_weight = (value.detach().double().requires_grad_() for value in (hidden, weight))
    exact = torch.autograd.grad(plain(exact_hidden, exact_weight, labels), (exact_hidden, exact_weight))
    for ours, expected in zip(gradients, exact, strict=True):
        assert ours.dtype is torch.bfloat16
        assert (ours.double() - expected).norm() < 2**-7 * expected.norm()  # the unit of bf16's last place


class LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize("gradient", [True, False])
def test_no_more_logits_than_a_chunk_exist_at_once(monkeypatch: pytest.MonkeyPatch, gradient: bool) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_TOKENS", 4)
    hidden, weight, labels = case(40, 30)
    with LargestTensor() as largest, torch.set_grad_enabled(gradient):
        loss = linear_cross_entropy(hidden, weight, labels)
        if gradient:
            loss.backward()
    assert largest.elements == (40 * 6 if gradient else 30 * 6)  # hidden, weight; all logits would be 40 x 30


def test_an_evaluation_computes_the_same_loss_and_no_gradient() -> None:
    hidden, weight, labels = case(9, 11)
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, labels)
    assert torch.equal(loss, linear_cross_entropy(hidden, weight, labels))
    assert loss.grad_fn is None
