"""The report: tables, figures, claims and provenance as one page of HTML that needs nothing outside itself."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

import provenance
from experiments import Experiments, Missing
from figures.rendering import Rendered
from runs import PassedOver

TEMPLATE = "report.html.jinja"
TITLE = "One-step gradient delay: what holds"
ABSTRACT = (
    "Tables, figures and claims of arXiv 2606.30634 (One-Step Gradient Delay is Not a Barrier for Large-Scale "
    "Asynchronous Pipeline Parallel LLM Pretraining), made from runs of asyncpp, with the paper's numbers beside ours."
)
PIXELS_PER_INCH = 120  # of a figure on the page: a column of a paper is 408 pixels wide

_SUMMARY = r"<details><summary>\1</summary>"

_markdown = MarkdownIt("commonmark", {"html": False}).enable("table")


@dataclass(frozen=True)
class Text:
    """A table or a chapter in Markdown, whose first heading the title takes the place of. name: unlike any other's."""

    name: str
    title: str
    markdown: str


def render(
    experiments: Experiments,
    texts: Sequence[Text],
    figures: Sequence[Rendered],
    missing: Sequence[Missing],
    passed_over: Sequence[PassedOver],
    command: str,
) -> str:
    """The page. command: what makes it."""
    runs = provenance.all_runs(experiments)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(
        title=TITLE,
        abstract=ABSTRACT,
        command=command,
        num_runs=len(runs),
        texts=[{"anchor": anchor(text.name), "title": text.title, "html": html_of(text.markdown)} for text in texts],
        figures=[
            {
                "anchor": anchor(figure.name),
                "title": figure.title,
                "caption": figure.caption,
                "data_uri": data_uri(figure.images["svg"]),
                "width_px": round(figure.width_in * PIXELS_PER_INCH),
            }
            for figure in figures
        ],
        missing=missing,
        sweeps=provenance.sweeps(runs),
        versions=provenance.versions(runs["folder"]),
        analysis=provenance.analysis(),
        passed_over=passed_over,
    )


def html_of(markdown: str) -> Markup:
    """Markdown as HTML, without its first heading and the others a level lower.

    HTML in it stays text, but for <details> and its <summary> on lines of their own.
    """
    tokens = _markdown.parse(re.sub(r"\A\s*#{1,6} .*\n", "", markdown))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{int(token.tag[1:]) + 1}"
    rendered = _markdown.renderer.render(tokens, _markdown.options, {})
    folded = re.sub(r"<p>&lt;details&gt;&lt;summary&gt;(.*?)&lt;/summary&gt;</p>", _SUMMARY, rendered)
    return Markup(folded.replace("<p>&lt;/details&gt;</p>", "</details>"))


def data_uri(svg: bytes) -> str:
    """An SVG inside an address."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
