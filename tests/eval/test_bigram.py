"""A model whose every probability is known, scored by lm-eval on each of its task types and by hand."""

from __future__ import annotations

import json
import logging
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from eval_cases import LETTERS, bigram
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from asyncpp.errors import ConfigError
from eval.adapter import AsyncppLM

# P(next | token): 1/36 to 8/36, in an order that differs from token to token; greedily each goes to one of its own.
SHARES = torch.tensor([[(5 * next_ + 3 * token + 1) % 8 + 1 for next_ in range(8)] for token in range(8)]).double() / 36


def by_hand(context: str, continuation: str) -> float:
    """The sum of log P(next | token); what has no token before it follows the end of a document."""
    text = "_" + context + continuation
    start = len(text) - len(continuation)
    return sum(math.log(share(text[i - 1], text[i])) for i in range(start, len(text)))


def share(token: str, next_: str) -> float:
    return float(SHARES[LETTERS.index(token), LETTERS.index(next_)])


def best_after(token: str) -> str:
    return max(LETTERS, key=lambda next_: share(token, next_))


def lm(max_length: int = 32, batch_size: int | None = None) -> AsyncppLM:
    return AsyncppLM(bigram(SHARES, max_length), None, batch_size)


def instances(kind: str, *arguments: tuple) -> list[Instance]:
    return [Instance(kind, {}, args, index) for index, args in enumerate(arguments)]  # pyright: ignore[reportArgumentType]


PAIRS = [("abc", "d"), ("abc", "dd"), ("abc", "efg"), ("", "a"), ("", "gab"), ("g", "f"), (" ", "ab"), ("ab ", "c")]


@pytest.mark.parametrize("batch_size", [None, 1, 3, 8])
def test_loglikelihoods_are_the_sums_by_hand(batch_size):
    scored = lm(batch_size=batch_size).loglikelihood(instances("loglikelihood", *PAIRS), disable_tqdm=True)
    for (context, continuation), (score, is_greedy) in zip(PAIRS, scored, strict=True):
        context = context.strip()
        assert score == pytest.approx(by_hand(context, continuation), abs=1e-12)
        text = ("_" + context + continuation)[-len(continuation) - 1 :]
        assert is_greedy == all(best_after(token) == next_ for token, next_ in pairwise(text))


def test_greedy_continuations_are_known_as_such():
    continuation = best_after("a") + best_after(best_after("a"))
    other = "".join(letter for letter in "gf" if letter != best_after("a"))
    scored = lm().loglikelihood(instances("loglikelihood", ("a", continuation), ("a", other)), disable_tqdm=True)
    assert [is_greedy for _, is_greedy in scored] == [True, False]


@pytest.mark.parametrize("max_length", [1, 2, 5, 32])
def test_a_rolling_loglikelihood_counts_every_token_once(max_length):
    texts = ["abcdefgabcd", "g", "", "aabb"]
    rolled = lm(max_length).loglikelihood_rolling(
        instances("loglikelihood_rolling", *[(t,) for t in texts]), disable_tqdm=True
    )
    assert rolled == pytest.approx([by_hand("", text) for text in texts], abs=1e-12)  # a bigram forgets the rest anyway


def test_generation_stops_at_a_stop_string_the_end_of_a_document_or_its_limit():
    def chain(start: str, length: int) -> str:
        text = start
        while len(text) <= length and best_after(text[-1]) != "_":
            text += best_after(text[-1])
        return text[1 : length + 1]

    after_a = chain("a", 12)
    assert len(after_a) >= 3
    requests = [
        ("a", {"until": [], "max_gen_toks": 12}),
        ("cba", {"until": ["none of these"], "max_gen_toks": 2}),
        ("a", {"until": [after_a[1:3], after_a[2]], "max_gen_toks": 12}),
        ("", {"until": "", "max_gen_toks": 3}),
        ("b", {"until": [], "max_gen_toks": 0}),
    ]
    texts = lm(max_length=2, batch_size=3).generate_until(instances("generate_until", *requests), disable_tqdm=True)
    assert texts == [after_a, after_a[:2], after_a[:1], chain("_", 3), ""]
    with pytest.raises(ConfigError, match="do_sample"):
        lm().generate_until(instances("generate_until", ("a", {"do_sample": True})), disable_tqdm=True)


def test_a_continuation_without_room_is_refused():
    with pytest.raises(ConfigError, match="max_length=3: expected 4 or more: a continuation has 4 tokens"):
        lm(max_length=3).loglikelihood(instances("loglikelihood", ("a", "abcd")), disable_tqdm=True)


ITEMS = [
    {"text": "ab", "choices": ["c", "d", "ef"], "gold": 0, "whole": "abcd", "answer": "e"},
    {"text": "g", "choices": ["aa", "b", "c"], "gold": 2, "whole": "gf", "answer": "b"},
    {"text": "", "choices": ["g", "a", "ff"], "gold": 1, "whole": "eee", "answer": "g"},
]
TASK_TYPES = {
    "multiple_choice": {"doc_to_choice": "{{choices}}", "doc_to_target": "gold", "metric_list": ["acc", "acc_norm"]},
    "loglikelihood": {"doc_to_target": "{{answer}}", "metric_list": ["perplexity", "acc"]},
    "loglikelihood_rolling": {"doc_to_target": "{{whole}}", "metric_list": ["bits_per_byte", "byte_perplexity"]},
    "generate_until": {
        "doc_to_target": "{{answer}}",
        "metric_list": ["exact_match"],
        "generation_kwargs": {"until": ["_"], "max_gen_toks": 1, "do_sample": False},
    },
}


@pytest.fixture(scope="module")
def manager(tmp_path_factory) -> TaskManager:
    folder: Path = tmp_path_factory.mktemp("tasks")
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    for kind, own in TASK_TYPES.items():
        metrics = [{"metric": name} for name in own["metric_list"]]
        definition = {
            "task": f"letters_{kind}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "items.jsonl")}},
            "test_split": "test",
            "output_type": kind,
            "doc_to_text": "" if kind == "loglikelihood_rolling" else "{{text}}",
            "target_delimiter": "",
            **own,
            "metric_list": metrics,
        }
        (folder / f"{kind}.yaml").write_text(yaml.safe_dump(definition))
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return TaskManager(include_defaults=False, include_path=str(folder))


def expected(kind: str) -> dict[str, float]:
    """Every metric by hand."""
    if kind == "multiple_choice":
        scores = [[by_hand(item["text"], choice) for choice in item["choices"]] for item in ITEMS]
        norms = [
            [score / len(choice) for score, choice in zip(row, item["choices"], strict=True)]
            for row, item in zip(scores, ITEMS, strict=True)
        ]
        picks = {"acc": scores, "acc_norm": norms}
        return {
            name: sum(row.index(max(row)) == item["gold"] for row, item in zip(rows, ITEMS, strict=True)) / len(ITEMS)
            for name, rows in picks.items()
        }
    if kind == "loglikelihood":
        mean = sum(by_hand(item["text"], item["answer"]) for item in ITEMS) / len(ITEMS)
        right = [best_after(("_" + item["text"])[-1]) == item["answer"] for item in ITEMS]
        return {"perplexity": math.exp(-mean), "acc": sum(right) / len(ITEMS)}
    if kind == "loglikelihood_rolling":
        total, num_bytes = sum(by_hand("", item["whole"]) for item in ITEMS), sum(len(item["whole"]) for item in ITEMS)
        return {"bits_per_byte": -total / num_bytes / math.log(2), "byte_perplexity": math.exp(-total / num_bytes)}
    right = [best_after(("_" + item["text"])[-1]) == item["answer"] for item in ITEMS]
    return {"exact_match": sum(right) / len(ITEMS)}


@pytest.mark.parametrize("kind", TASK_TYPES)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_every_task_type_has_the_metrics_by_hand(kind, batch_size, manager):
    name = f"letters_{kind}"
    results = evaluate(lm(batch_size=batch_size), manager.load([name]), bootstrap_iters=10)
    assert results is not None
    for metric, value in expected(kind).items():
        assert results["results"][name][f"{metric},none"] == pytest.approx(value, abs=1e-9), metric
