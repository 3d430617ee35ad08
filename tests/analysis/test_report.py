"""The report: one page that holds everything and asks for nothing outside itself."""

from __future__ import annotations

import base64
import html
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from planted import PlantRun
from planted_sweeps import plant_all

import make_report as command
from asyncpp.arguments import run_command
from asyncpp.records import commit
from figures.catalogue import FAMILIES, THEORY
from load_experiments import load_experiments
from provenance import all_runs, sweeps, versions
from report import anchor, html_of
from table_text import wrapped

VOID = {"meta", "img", "br", "hr", "link", "input"}
ADDRESSES = {"src", "href", "srcset", "poster", "data", "action", "xlink:href"}


class Page(HTMLParser):
    """Every tag closed in order, and every address and id that the page has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.addresses += [str(values[name]) for name in ADDRESSES & set(values)]
        self.ids += [str(values["id"])] if "id" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    runs_dir = plant_all(folder / "runs")
    arguments = (f"runs={runs_dir}", f"out={folder}")
    assert run_command(command.__doc__, arguments, command.ReportOptions, command.main) == 0
    return (folder / "report.html").read_text()


def test_it_asks_for_nothing_outside_itself(report: str) -> None:
    page = Page(report)
    assert page.addresses
    for address in page.addresses:
        assert address.startswith(("data:image/svg+xml;base64,", "#")), address[:60]
    assert not {"script", "link", "iframe", "object", "embed"} & set(page.tags)
    assert "url(" not in report and "@import" not in report
    assert "default-src 'none'" in report


def test_every_link_leads_somewhere(report: str) -> None:
    page = Page(report)
    assert len(set(page.ids)) == len(page.ids)
    assert {address[1:] for address in page.addresses if address.startswith("#")} <= set(page.ids)


def test_every_figure_table_and_claim_is_in_it(report: str) -> None:
    page = Page(report)
    figures = {anchor(entry.name) for entry in (*FAMILIES, *THEORY)}
    assert figures <= set(page.ids)
    images = [address for address in page.addresses if address.startswith("data:")]
    assert len(images) == len(figures)
    for image in images:
        svg = base64.b64decode(image.partition(",")[2])
        assert svg.startswith(b"<?xml") and b"http://www.w3.org/2000/svg" in svg
        assert not re.search(rb'(href|src)="(?!#)', svg.replace(b'xlink:href="#', b'href="#'))
    text = html.unescape(report)
    for title in ("Table 1.", "Table 2.", "Table 3."):
        assert title in text
    for claim in range(1, 9):
        assert re.search(rf"<h3>C{claim}\. ", report), f"C{claim}"


def test_it_says_where_the_runs_come_from(report: str) -> None:
    for sweep in ("table1_optimizers", "figure6_pipedream", "appendix_a_batch_size", "strength", "probes"):
        assert f"<summary>{sweep}: " in report
    assert "<code>0123abc</code>" in report
    assert "<td>0, 1</td>" in report
    assert "data.sequence_length = 64" in report


def test_it_says_what_the_analysis_was_made_with(report: str) -> None:
    found = dict(re.findall(r"<tr><th>(\w+)</th><td>([^<]*)</td></tr>", report.partition("Of the analysis")[2]))
    assert found.keys() == {"commit", "numpy", "pandas", "scipy", "matplotlib"}
    assert found["pandas"] == pd.__version__ and found["matplotlib"] == matplotlib.__version__
    assert commit().startswith(found["commit"].partition("-")[0])


def test_it_names_the_runs_that_one_table_leaves_out_and_the_tables_that_are_not_there(
    report: str, tmp_path: Path
) -> None:
    page = html.unescape(report)
    missing = page.partition('<h2 id="missing">')[2].partition("<h2")[0]
    assert "Table 4: no scored runs" in missing and "sweep run table4_downstream && " in missing
    passed_over = page.partition("<h3>Passed over</h3>")[2]
    assert passed_over.count("no whole, finite validation curve: not in the time to a loss") == 6  # those of table3_moe


def test_its_command_makes_it_again(tmp_path: Path, plant: PlantRun) -> None:
    runs_dir = plant(metrics=[{"step": 0, "train/loss": 4.0}]).parent
    told = (f"runs={runs_dir}", f"out={tmp_path}", "scale=tiny", "num_stages=2", "num_micro_batches=8")
    assert run_command(command.__doc__, told, command.ReportOptions, command.main) == 0
    page = html.unescape((tmp_path / "report.html").read_text())
    assert f"Made by <code>python analysis/make_report.py {' '.join(told)}</code>" in page
    assert "no whole, finite validation curve" in page  # though no time to a loss can be told


def test_what_a_run_says_is_text_and_no_markup(tmp_path: Path, plant: PlantRun) -> None:
    runs_dir = plant(summary={"commit": "<script>alert(1)</script>"}, metrics=[{"step": 0, "train/loss": 4.0}]).parent
    plant(summary={"status": "failed", "error": "<b>bold</b>"}, folder="failed")
    arguments = (f"runs={runs_dir}", f"out={tmp_path}")
    assert run_command(command.__doc__, arguments, command.ReportOptions, command.main) == 0
    page = (tmp_path / "report.html").read_text()
    Page(page)
    assert "<script>" not in page and "<b>bold" not in page
    assert "failed: &lt;b&gt;bold&lt;/b&gt;" in page


def test_markdown_loses_its_title_and_keeps_its_table() -> None:
    table = "### Title\n\n| a | b |\n| :- | -: |\n| x <i> | 1 |\n\n"
    html_text = html_of(f"{table}## Below\n\n<details><summary>2 runs</summary>\n\n- a\n\n</details>\n")
    assert "Title" not in html_text
    assert '<td style="text-align:right">1</td>' in html_text
    assert "x &lt;i&gt;" in html_text
    assert "<h3>Below</h3>" in html_text
    assert "<details><summary>2 runs</summary>\n<ul>" in html_text
    Page(html_text)


def test_a_minus_in_a_note_is_never_a_list_of_its_own() -> None:
    for length in range(60, 100):
        page = html_of("\n".join(wrapped([f"{'x' * length} gap = async - sync, by seed; slope over 1 / (1 - beta)"])))
        assert page.count("<ul>") == 1
        assert "async - sync" in " ".join(page.split())


def test_versions_that_differ_are_counted(tmp_path: Path) -> None:
    folders = []
    for index, torch in enumerate(("2.13.0", "2.13.0", "2.12.0")):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "environment.json").write_text(f'{{"python": "3.11.2", "packages": {{"torch": "{torch}"}}}}')
        folders.append(folder)
    found = versions(folders)
    assert found["torch"] == "2.12.0 (1 runs), 2.13.0 (2 runs)"
    assert found["python"] == "3.11.2"
    assert found["processor"] == "not recorded"


def test_a_run_that_goes_meanwhile_is_told_as_it_was_read(plant: PlantRun) -> None:
    plant(seed=0)
    gone = plant(seed=1)
    runs = all_runs(load_experiments(gone.parent))
    shutil.rmtree(gone)
    (sweep,) = sweeps(runs)
    assert (sweep.num_runs, sweep.varied) == (2, ["seed"]) and "optimizer.lr = 0.003" in sweep.common
    assert versions(runs["folder"])["python"] == "not recorded"


@pytest.mark.parametrize("text", ['{"packages": null}', '{"packages": [1]}', "[1]", "{"])
def test_an_environment_of_another_form_is_not_recorded(tmp_path: Path, text: str) -> None:
    (tmp_path / "environment.json").write_text(text)
    assert set(versions([tmp_path]).values()) == {"not recorded"}


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (f"runs={tmp_path}", f"out={tmp_path / 'results'}")
    assert run_command(command.__doc__, arguments, command.ReportOptions, command.main) == 2
    assert "expected at least one finished run" in capsys.readouterr().err
