from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import SMALL, SMALL_MOE, call, leaves_of, random_tokens
from torch import Tensor

from asyncpp.model.config import LlamaConfig
from asyncpp.model.documents import document_numbers, within_documents
from asyncpp.model.llama import build

END = 0

# Lengths of the documents of each of the sequences of a batch, 12 tokens long.
PACKINGS = st.lists(
    st.lists(st.integers(1, 12), min_size=1, max_size=12).map(lambda lengths: cut_to(lengths, 12)),
    min_size=1,
    max_size=3,
)


def cut_to(lengths: list[int], total: int) -> list[int]:
    """The first of ``lengths``, as many as fit, and what is left."""
    taken: list[int] = []
    for length in lengths:
        taken.append(min(length, total - sum(taken)))
    taken.append(total - sum(taken))
    return [length for length in taken if length]


def pack(config: LlamaConfig, packing: list[list[int]]) -> Tensor:
    """Random tokens whose documents have these lengths. The last of a sequence has no end: it goes on after it."""
    tokens = 1 + random_tokens(config, len(packing), sum(packing[0])) % (config.vocab_size - 1)
    for row, lengths in zip(tokens, packing, strict=True):
        row[torch.tensor(lengths).cumsum(0)[:-1] - 1] = END
    return tokens


def documents_alone(tokens: Tensor, packing: list[list[int]]) -> list[Tensor]:
    """Every document as a batch of its own, (1, length)."""
    return [part[None] for row, lengths in zip(tokens, packing, strict=True) for part in row.split(lengths)]


def gradients(objective: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(zip(leaves, torch.autograd.grad(objective, list(leaves.values())), strict=True))


@pytest.mark.parametrize("config", [SMALL, SMALL_MOE])
@settings(max_examples=12, deadline=None)
@given(packing=PACKINGS)
def test_packed_documents_give_the_logits_and_gradients_of_each_alone(
    config: LlamaConfig, packing: list[list[int]]
) -> None:
    model, leaves, tokens = build(config), leaves_of(config), pack(config, packing)
    together = call(model, leaves, tokens, None, None, document_numbers(tokens, END))
    alone = [call(model, leaves, document) for document in documents_alone(tokens, packing)]
    expected = torch.cat([logits[0] for logits in alone]).view_as(together)
    torch.testing.assert_close(together, expected, rtol=1e-9, atol=1e-11)
    weights = torch.randn(together.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ours = gradients((together * weights).sum(), leaves)
    for name, gradient in gradients((expected * weights).sum(), leaves).items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-8, atol=1e-10)


def test_the_loss_is_the_mean_over_the_tokens_of_all_documents() -> None:
    """With labels, as a training step calls it; a document's end predicts the next one's first token."""
    packing = [[4, 8], [5, 5, 2]]
    model, leaves, tokens = build(SMALL), leaves_of(SMALL), pack(SMALL, packing)
    labels = tokens.roll(-1, 1)
    loss = call(model, leaves, tokens, labels, None, document_numbers(tokens, END))
    parts = zip(documents_alone(tokens, packing), documents_alone(labels, packing), strict=True)
    sums = [call(model, leaves, document, its_labels) * document.numel() for document, its_labels in parts]
    torch.testing.assert_close(loss, torch.stack(sums).sum() / tokens.numel(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("config", [SMALL, SMALL_MOE])
def test_one_document_a_sequence_is_plain_causal_attention(config: LlamaConfig) -> None:
    model, leaves, tokens = build(config), leaves_of(config), pack(config, [[12], [12]])
    masked = call(model, leaves, tokens, None, None, document_numbers(tokens, END))
    torch.testing.assert_close(masked, call(model, leaves, tokens), rtol=1e-10, atol=1e-12)


def test_without_the_mask_a_document_sees_the_one_before() -> None:
    """Else the tests above could not fail."""
    packing = [[6, 6]]
    model, leaves, tokens = build(SMALL), leaves_of(SMALL), pack(SMALL, packing)
    alone = call(model, leaves, documents_alone(tokens, packing)[1])
    assert (call(model, leaves, tokens)[:, 6:] - alone).abs().amax(-1).min() > 1e-6


@pytest.mark.parametrize("cut", range(4))
def test_stages_in_a_row_are_the_whole_model(cut: int) -> None:
    tokens, leaves = pack(SMALL, [[3, 4, 5], [1, 11]]), leaves_of(SMALL)
    documents = document_numbers(tokens, END)
    first = build(SMALL, range(cut), first=True, last=False)
    last = build(SMALL, range(cut, SMALL.num_layers), first=False, last=True)
    hidden = call(first, leaves, tokens, None, None, documents)
    in_two = call(last, leaves, hidden, None, None, documents)
    assert torch.equal(in_two, call(build(SMALL), leaves, tokens, None, None, documents))


@pytest.mark.parametrize("autocast", [False, True])
def test_all_layers_keep_one_mask_for_their_backward(autocast: bool) -> None:
    """Else it is what a long sequence needs most memory for."""
    tokens = pack(SMALL, [[40, 24]])
    mask_bytes = tokens.shape[1] ** 2 * (2 if autocast else 8)
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().nbytes() >= mask_bytes and tensor.shape[-2:] == (64, 64):
            kept[tensor.untyped_storage().data_ptr()] = tensor  # alive, so that no other takes its place
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        leaves = leaves_of(SMALL, torch.float32 if autocast else torch.float64)
        call(build(SMALL), leaves, tokens, tokens, None, document_numbers(tokens, END))
    assert len(kept) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=7, max_size=7), min_size=1, max_size=3))
def test_numbers_and_mask_follow_the_ends(rows: list[list[int]]) -> None:
    numbers = document_numbers(torch.tensor(rows), END)
    mask = within_documents(numbers, torch.float32)
    assert mask.shape == (len(rows), 1, 7, 7)
    assert ((mask == 0) | (mask == -torch.inf)).all()
    for row, tokens in enumerate(rows):
        for query in range(7):
            begin = max((place + 1 for place in range(query) if tokens[place] == END), default=0)
            assert numbers[row, query] == tokens[:query].count(END)
            assert (mask[row, 0, query] == 0).tolist() == [begin <= key <= query for key in range(7)]


def test_an_end_belongs_to_the_document_that_it_ends() -> None:
    assert document_numbers(torch.tensor([[5, END, 6, END, END, 7]]), END).tolist() == [[0, 0, 1, 1, 2, 3]]
