"""What preparation refuses: one line that names the key, the value and what is accepted."""

import os
import re
import tempfile
from pathlib import Path

import pytest
from data_cases import DOCUMENTS, END, Workshop, refusal

from asyncpp.data.config import TokenizerConfig
from asyncpp.data.prepare import prepare


@pytest.mark.parametrize("setting", ["validation_fraction", "shard_tokens", "text_column"])
def test_other_settings_are_refused(raw, setting):
    prepare(raw.config())
    other = {"validation_fraction": 0.3, "shard_tokens": 501, "text_column": "body"}[setting]
    message = refusal(prepare, raw.config(**{setting: other}))
    assert message.startswith(f"data.{setting}={other}:") and "data.root" in message


def test_another_tokenizer_is_refused(raw, tmp_path):
    prepare(raw.config())
    trained = TokenizerConfig("trained", None, END)
    assert refusal(prepare, raw.config(tokenizer=trained)).startswith("data.tokenizer.kind=trained:")
    other = tmp_path / "other.json"
    other.write_text(raw.tokenizer_file.read_text().replace('"version": "1.0"', '"version":  "1.0"'))
    message = refusal(prepare, raw.config(tokenizer=TokenizerConfig("file", str(other), END)))
    assert message.startswith(f"data.tokenizer.name={other}:")


def test_a_moved_tokenizer_is_accepted(raw, tmp_path):
    prepare(raw.config())
    moved = tmp_path / "moved.json"
    moved.write_bytes(raw.tokenizer_file.read_bytes())
    prepare(raw.config(tokenizer=TokenizerConfig("file", str(moved), END)))


def test_another_source_is_refused_and_no_source_is_accepted(raw):
    prepare(raw.config())
    raw.write(DOCUMENTS[:5], "c.jsonl")
    assert refusal(prepare, raw.config()).startswith(f"data.path={raw.folder / 'raw'}:")
    prepare(raw.config(path=None))


def test_another_budget_is_refused_and_none_is_accepted(raw):
    prepare(raw.config(budget_tokens=1500.0))
    assert refusal(prepare, raw.config(budget_tokens=2000.0)).startswith("data.budget_tokens=2000.0:")
    prepare(raw.config())


BAD_INPUT = {
    "no path": ({"path": None}, r"data\.path=null: expected a file or folder with \.parquet"),
    "no such path": ({"path": "nowhere"}, r"data\.path=nowhere: no such file or folder"),
    "no end token": (
        {"tokenizer": ("file", "FILE", "</s>")},
        r"data\.tokenizer\.end_of_document=</s>: expected a token of the tokenizer \(<\|endoftext\|>\)",
    ),
    "an end that text can spell": (
        {"tokenizer": ("file", "FILE", "a")},
        r"data\.tokenizer\.end_of_document=a: expected a special token",
    ),
    "no tokenizer": (
        {"tokenizer": ("file", "nowhere.json", END)},
        r"data\.tokenizer\.name=nowhere\.json: expected a re",
    ),
    "small vocabulary": ({"vocab_size": 299}, r"data\.vocab_size=299: expected 300 or more"),
    "no such column": ({"text_column": "body"}, r"data\.text_column=body: .*a\.jsonl has the columns text"),
    "too little space": (
        {"budget_tokens": 1e18, "path": "HUGE"},
        r"data\.root=.*: about .* tokens need [\d,.]+ GB, and [\d,.]+ [GM]B are free",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_leaves_nothing(raw, case, monkeypatch):
    given, expected = BAD_INPUT[case]
    given = dict(given)
    if "tokenizer" in given:
        kind, name, end = given["tokenizer"]
        given["tokenizer"] = TokenizerConfig(kind, str(raw.tokenizer_file) if name == "FILE" else name, end)
    if given.get("path") == "HUGE":
        del given["path"]
        monkeypatch.setattr("asyncpp.data.sources.files.FileSource.expected_bytes", lambda self: 10**18)
    config = raw.config(**given)
    assert re.match(expected, refusal(prepare, config))
    if case != "no such column":  # that shows only when a file is read
        assert not Path(config.root).exists()


@pytest.mark.parametrize("line", ["not json", "[1]", '{"text": 3}'])
def test_a_line_that_is_no_document_is_named_by_its_place(workshop, line):
    path = workshop.write(["good"])
    place = path.stat().st_size
    path.write_text(path.read_text() + line + "\n")
    message = refusal(prepare, workshop.config())
    assert message.startswith(f"data.path={path}:") and f"byte {place}" in message


def test_a_folder_that_cannot_be_written_is_named(raw):
    config = raw.config(root=str(raw.folder / "raw" / "a.jsonl" / "data"))
    assert refusal(prepare, config).startswith(f"data.root={config.root}: expected a writable folder")


def test_a_read_only_folder_is_named():
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), Path(folder) / "tokenizer.json")
        workshop.write(DOCUMENTS)
        config = workshop.config(tokenizer=TokenizerConfig("trained", None, END), root=f"{folder}/data")
        Path(config.root).mkdir()
        Path(folder).chmod(0o755)
        Path(config.root).chmod(0o555)
        root_user = os.geteuid() == 0
        try:
            if root_user:
                os.seteuid(65534)  # root may write anywhere
            assert (
                refusal(prepare, config) == f"data.root={config.root}: expected a writable folder (Permission denied)"
            )
        finally:
            if root_user:
                os.seteuid(0)
            Path(config.root).chmod(0o755)
