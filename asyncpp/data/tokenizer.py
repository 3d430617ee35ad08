"""The tokenizer of a source: trained on it, read from a file, or fetched from the hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from asyncpp.data.config import SourceConfig
from asyncpp.data.encode import PIECE_CHARACTERS, pieces
from asyncpp.data.sources.base import Source
from asyncpp.data.split import is_held_out
from asyncpp.errors import ConfigError, require

TRAINING_CHARACTERS = 2**26  # of the first documents; more hardly changes the merges


def find_tokenizer(config: SourceConfig) -> Path | None:
    """The tokenizer.json that ``config`` names, known to be usable; None if it is to be trained."""
    if config.tokenizer.kind == "trained":
        return None
    if config.tokenizer.kind == "hub":
        from asyncpp.data.hub import tokenizer_file

        path = tokenizer_file(config.tokenizer.name or "")
    else:
        path = Path(config.tokenizer.name or "")
    tokenizer = read_tokenizer(path)
    end_of_document_id(tokenizer, config.tokenizer.end_of_document)
    accepted = f"expected {tokenizer.get_vocab_size()} or more, the size of the tokenizer"
    require(tokenizer.get_vocab_size() <= config.vocab_size, "data.vocab_size", config.vocab_size, accepted)
    return path


def train_on_source(config: SourceConfig, source: Source) -> Tokenizer:
    """A tokenizer for the first training documents of ``source``."""
    texts = _training_texts(source, config.validation_fraction)
    return train_tokenizer(texts, config.vocab_size, config.tokenizer.end_of_document)


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
    """The tokenizer in a ``tokenizer.json``, set to encode whole texts and nothing but them.

    Text that looks like a special token is encoded as plain text: only we end a document.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise ConfigError("data.tokenizer.name", path, f"expected a readable tokenizer.json ({error})") from None
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def end_of_document_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of the token that ends a document."""
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        special = [added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special]
        accepted = ", ".join(special) if special else "none: it has no special token"
        raise ConfigError("data.tokenizer.end_of_document", token, f"expected a token of the tokenizer ({accepted})")
    spelled = tokenizer.encode(token, add_special_tokens=False).ids
    accepted = "expected a special token: text that spells this one out would end a document"
    require(token_id not in spelled, "data.tokenizer.end_of_document", token, accepted)
    return token_id


def _training_texts(source: Source, validation_fraction: float) -> Iterator[str]:
    """The first documents that are not held out, a huge one in pieces: training takes many times a text's memory."""
    num_characters = 0
    for document in source.documents(None):
        if is_held_out(document.text, validation_fraction):
            continue
        for piece in pieces(document.text, PIECE_CHARACTERS):
            yield piece
            num_characters += len(piece)
            if num_characters >= TRAINING_CHARACTERS:
                return
