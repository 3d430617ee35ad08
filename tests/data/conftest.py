from pathlib import Path

import pytest
from data_cases import DOCUMENTS, END, Workshop, make_documents

from asyncpp.data.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(make_documents(50), 300, END).save(str(path))
    return path


@pytest.fixture
def workshop(tmp_path, tokenizer_file) -> Workshop:
    return Workshop(tmp_path, tokenizer_file)


@pytest.fixture
def raw(workshop) -> Workshop:
    """DOCUMENTS, in two files."""
    workshop.write(DOCUMENTS[:70], "a.jsonl")
    workshop.write(DOCUMENTS[70:], "b.jsonl")
    return workshop
