"""The tokenizer of a source: trained on it, read from a file, or fetched from the hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from asyncpp.errors import ConfigError


def train_tokenizer(texts: Iterable[str], vocab_size: int, end_of_document: str) -> Tokenizer:
    """A byte-level BPE of at most ``vocab_size`` entries. Equal texts give an equal tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[end_of_document],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # all 256 bytes: no text is unknown
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a ``tokenizer.json``; text that looks like a special token is encoded as plain text."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError("data.tokenizer.name", path, f"expected a readable tokenizer.json ({error})") from error
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def end_of_document_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of the token that ends a document."""
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        special = [added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special]
        accepted = ", ".join(special) if special else "none: the tokenizer has no special token"
        raise ConfigError("data.tokenizer.end_of_document", token, f"expected a token of the tokenizer ({accepted})")
    return token_id
