"""Our models as a language model of lm-eval.

A TemplateLM, not the HFLM that lm-eval has: that one needs transformers and an exported copy of every checkpoint, and
computes each choice of an item anew. TemplateLM leaves three methods and a tokenizer to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer
from tqdm import tqdm

from asyncpp.errors import require
from eval.checkpoint import Evaluated
from eval.scoring import Pair, Scorer

GENERATED_AT_ONCE = 16
MAX_NEW_TOKENS = 256  # where a task names no limit; lm-eval's own default


@dataclass
class Generated:
    """A text on its way. start: where its context ends in ``tokens``. num_left: tokens that it may yet get."""

    tokens: list[int]
    start: int
    stops: list[str]
    num_left: int
    text: str = ""


def num_tokens_of_longest(texts: Iterable[str], tokenizer: Tokenizer) -> int:
    """Of ``texts``; 0 of none."""
    encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return max((len(encoding) for encoding in encoded), default=0)


class AsyncppLM(TemplateLM):
    """max_length: tokens that the model may see at once; None is what it was trained on. batch_size: see Scorer."""

    def __init__(self, evaluated: Evaluated, max_length: int | None = None, batch_size: int | None = None) -> None:
        super().__init__()
        self._tokenizer = evaluated.tokenizer
        self._prefix_token = evaluated.prefix_token
        self.max_length = max_length or evaluated.max_length
        self.scorer = Scorer(evaluated.model, evaluated.vocab_size, self.max_length, batch_size)
        # The choices of an item bring the same context one after the other.
        self._encode = lru_cache(maxsize=4)(lambda text: self._tokenizer.encode(text, add_special_tokens=False).ids)

    @property
    def eot_token_id(self) -> int:
        return self._prefix_token

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """The token ids of a text. None is ever added: training documents begin with none of their own."""
        return list(self._encode(string))

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As lm-eval has it, which leaves spaces to what follows: where nothing else is there, the prefix token is."""
        if not context.strip():
            return [self.prefix_token_id], self.tok_encode(context + continuation)
        return super()._encode_pair(context, continuation)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        prefix = [self.prefix_token_id]  # for a text that the tokenizer makes nothing of
        return self._score([(context or prefix, continuation) for _, context, continuation in requests], disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, each token predicted once, from as much as fits before it."""
        windows: list[Pair] = []
        ends = []
        for request in requests:
            tokens = self.tok_encode(request.args[0])
            pieces = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
            windows += map(make_disjoint_window, pieces)
            ends.append(len(windows))
        scores = [score for score, _ in self._score(windows, disable_tqdm)]
        return [sum(scores[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations, each up to the first of its stop strings, the end of a document or its limit.

        Every token reads the last ``max_length`` tokens before it, anew: the seven benchmarks generate nothing.
        """
        texts = [self._begin(*request.args) for request in requests]
        by_length = sorted(texts, key=lambda text: -len(text.tokens))
        size = self.scorer.batch_size or GENERATED_AT_ONCE
        for start in tqdm(range(0, len(texts), size), desc="generating", disable=disable_tqdm):
            active = [text for text in by_length[start : start + size] if text.num_left > 0]
            while active:
                for text, token in zip(active, self.scorer.next_tokens([t.tokens for t in active]), strict=True):
                    self._extend(text, token)
                active = [text for text in active if text.num_left > 0]
        return [text.text for text in texts]

    def _begin(self, context: str, settings: dict[str, Any]) -> Generated:
        sampled = settings.get("do_sample", False) and settings.get("temperature", 1.0) > 0
        require(not sampled, "tasks", "do_sample", "expected tasks that decode greedily")
        until = settings.get("until") or []
        stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
        tokens = self.tok_encode(context) or [self.prefix_token_id]
        return Generated(tokens, len(tokens), stops, settings.get("max_gen_toks", MAX_NEW_TOKENS))

    def _extend(self, generated: Generated, token: int) -> None:
        if token == self.eot_token_id:
            generated.num_left = 0
            return
        generated.tokens.append(token)
        generated.num_left -= 1
        text = self._tokenizer.decode(generated.tokens[generated.start :], skip_special_tokens=False)
        stops = [place for stop in generated.stops if (place := text.find(stop)) >= 0]
        generated.text = text[: min(stops)] if stops else text
        if stops:
            generated.num_left = 0

    def _score(self, pairs: Sequence[Pair], disable_tqdm: bool) -> list[tuple[float, bool]]:
        with tqdm(total=len(pairs), desc="scoring", unit=" requests", disable=disable_tqdm) as progress:
            return self.scorer.score(pairs, progress.update)
