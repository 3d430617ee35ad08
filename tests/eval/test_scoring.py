"""Scores against the obvious way, one request after the other; whatever the batch, truncated or not."""

from __future__ import annotations

import copy

import pytest
import torch
from eval_cases import small_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call

from asyncpp.errors import ConfigError
from asyncpp.hydra_command import compose_overrides, typed
from eval.scoring import Pair, Scorer, rows_of

DENSE = ()
MIXTURE = ("model=tiny_moe", "model.ffn_size=16", "model.num_experts=5", "model.top_k=2", "model.shared_ffn_size=12")
VOCAB = 61
tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)
# Few contexts for many continuations, so that some share one.
requests = st.lists(tokens, min_size=1, max_size=3).flatmap(
    lambda contexts: st.lists(st.tuples(st.sampled_from(contexts), tokens | st.just([])), min_size=1, max_size=12)
)


def scored_alone(model: torch.nn.Module, pair: Pair, max_length: int) -> tuple[float, bool]:
    """The whole text through the model's own forward, with every output."""
    context, continuation = list(pair[0]), list(pair[1])
    if not continuation:
        return 0.0, True
    text = (context + continuation)[-(max_length + 1) :]
    weights: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    logprobs = functional_call(model, weights, (torch.tensor([text[:-1]]),))[0].log_softmax(-1)[-len(continuation) :]
    target = torch.tensor(continuation)
    total = logprobs.gather(1, target[:, None]).sum().item()
    return total, bool((logprobs.argmax(-1) == target).all())


@pytest.fixture(scope="module", params=[DENSE, MIXTURE], ids=["dense", "mixture"])
def model(request):
    overrides = (*request.param, f"model.vocab_size={VOCAB}", "model.num_layers=2", "model.hidden_size=24",
                 "model.num_heads=6", "model.num_kv_heads=2")  # fmt: skip
    return small_model(typed(compose_overrides(overrides), "model"), seed=3)


@settings(max_examples=40, deadline=None)
@given(pairs=requests, max_length=st.integers(9, 20), batch_size=st.integers(1, 8) | st.none())
def test_every_score_is_that_of_the_request_alone(model, pairs, max_length, batch_size):
    scores = Scorer(model, VOCAB, max_length, batch_size).score(pairs)
    for pair, (score, is_greedy) in zip(pairs, scores, strict=True):
        alone, greedy_alone = scored_alone(model, pair, max_length)
        assert score == pytest.approx(alone, abs=1e-10)
        assert is_greedy == greedy_alone


def test_batches_of_one_and_eight_agree_in_fp32(model):
    generator = torch.Generator().manual_seed(0)
    single = copy.deepcopy(model).to(torch.float32)
    pairs = []
    for _ in range(20):
        context = torch.randint(VOCAB, (int(torch.randint(1, 40, (), generator=generator)),), generator=generator)
        for length in (1, 3, 7, 2):
            pairs.append((context.tolist(), torch.randint(VOCAB, (length,), generator=generator).tolist()))
    one, eight, auto = (Scorer(single, VOCAB, 64, size).score(pairs) for size in (1, 8, None))
    for score, *others in zip(one, eight, auto, strict=True):
        assert all(other[0] == pytest.approx(score[0], abs=2e-5) and other[1] == score[1] for other in others)


def test_choices_of_an_item_share_a_row_that_is_no_longer_than_the_model():
    context = list(range(10))
    pairs = [(context, [1, 2, 3]), (context, [4]), (context, [5, 6]), (context, [])]
    (row,) = rows_of(pairs, max_length=13)
    assert row.num_tokens == 10 + 2 + 0 + 1
    assert [request for request, _ in row.continuations] == [0, 1, 2, 3]
    assert [r.num_tokens for r in rows_of(pairs, max_length=12)] == [
        12,
        11,
    ]


def test_a_context_is_cut_on_its_left_and_a_continuation_never():
    (row,) = rows_of([(list(range(10)), [20, 21, 22])], max_length=3)
    assert row.context == (9,) and row.continuations == [(0, [20, 21, 22])]
    with pytest.raises(ConfigError, match="max_length=2: expected 3 or more: a continuation has 3 tokens"):
        rows_of([(list(range(10)), [20, 21, 22])], max_length=2)


def test_max_length_three_scores_only_the_continuation(model):
    context, continuation = [7] * 50, [20, 21, 22]
    ((score, _),) = Scorer(model, VOCAB, 3).score([(context, continuation)])
    assert score == pytest.approx(scored_alone(model, ([7], continuation), 3)[0], abs=1e-10)


def test_greedy_tokens_are_those_of_each_context_alone(model):
    scorer = Scorer(model, VOCAB, 6)
    contexts = [[1], [2, 3, 4], list(range(20)), [5, 6]]
    assert scorer.next_tokens(contexts) == [scorer.next_tokens([context])[0] for context in contexts]
    assert scorer.next_tokens([list(range(20))]) == scorer.next_tokens([list(range(14, 20))])


def test_no_requests_are_no_scores(model):
    assert Scorer(model, VOCAB, 6).score([]) == []
