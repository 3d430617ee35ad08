"""The judged claims as Markdown: one line a claim and scale, then what each verdict rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from experiments import Experiments
from gaps import paper
from labels import optimizer_title
from outputs import not_counted
from rules.verdicts import MIN_SEEDS, Claim, Statement, Verdict
from runs import FailedRun
from significance import STUDENT
from table_text import MISSING, aligned, wrapped

TITLE = "Claims of the paper, and what our runs say"


def to_markdown(claims: Sequence[Claim], experiments: Experiments, made_by: str) -> str:
    """All of it. experiments: what the claims were judged by. made_by: the command that made it."""
    notes = [*_preface(made_by), *_lost(experiments.all_failed), *not_counted(experiments.passed_over)]
    lines = [f"# {TITLE}", "", *wrapped(notes), "", *_summary(claims), ""]
    for name in dict.fromkeys(claim.name for claim in claims):
        own = [claim for claim in claims if claim.name == name]
        lines += [f"## {name}. {own[0].text}", "", *wrapped([f"Rule: {own[0].rule}"]), ""]
        for claim in own:
            lines += _of_scale(claim)
    return "\n".join(lines) + "\n"


def summary(claims: Sequence[Claim]) -> str:
    """The table of verdicts alone, for a terminal."""
    return "\n".join([*_summary(claims), ""])


def statement_cells(statement: Statement) -> list[str]:
    """Statement, effect with its interval, threshold, n, p-value and verdict, as texts."""
    effect = statement.effect
    value = (
        MISSING
        if effect is None
        else f"{effect.mean:+.4g}{_interval(statement)} {statement.unit}{_of_fewer(statement)}"
    )
    p_value = MISSING if statement.p_value is None else f"{statement.p_value:.2g}"
    verdict = str(statement.verdict) if statement.reason is None else f"{statement.verdict}: {statement.reason}"
    seeds = str(_num_seeds(statement))
    return [statement.text + ("" if statement.counts else " *"), verdict, value, statement.threshold, seeds, p_value]


def _num_seeds(statement: Statement) -> int:
    if statement.num_seeds is not None:
        return statement.num_seeds
    return statement.effect.num_seeds if statement.effect else 0


def _of_fewer(statement: Statement) -> str:
    """How many seeds the mean is over, where others diverged."""
    mean_of = statement.effect.num_seeds if statement.effect else 0
    return "" if mean_of == _num_seeds(statement) else f" (n={mean_of})"


def _preface(made_by: str) -> Iterator[str]:
    yield f"Made by `{made_by}`, never by hand. Paper: {paper()['source']}."
    yield (
        f"A verdict needs {MIN_SEEDS} seeds, paired, and a 95 % interval (Student's t) on one side of the threshold. "
        "Thresholds come from the paper's numbers where it gives any; C2's and C5's margins and C8's factor are our "
        "choice, none is taken from our runs. p-values are two-sided, of the effect being the threshold, by Student's "
        "t, too, and not corrected for the number of statements. An interval of another kind says so beside it: C3's "
        "share decides nothing, C5 is judged by its bootstrap over items."
    )
    yield (
        "A run that diverged is in no mean, but counts as worse than any that did not: no statement holds against it, "
        "and where more than half of a statement's seeds diverged, that decides it. A seed whose reference diverged "
        "says nothing, and so does a run that failed for another reason. (n=2) is of how many seeds a mean is, where "
        "others diverged."
    )
    yield "A scale is a model of this repository. What does not hold at a small one may hold at the paper's."


def _lost(failed: Iterable[FailedRun]) -> Iterator[str]:
    """A line a failed run: where one diverged, a mean over the others is too good."""
    for run in failed:
        what = f"{optimizer_title(run.optimizer)} {run.condition}, {run.model}, seed {run.seed}"
        yield f"In no mean, as it failed: {run.sweep_name}, {what}: {run.reason}"


def _summary(claims: Sequence[Claim]) -> list[str]:
    header = ["claim", "scale", "verdict", "statements", "n"]
    lines = []
    for claim in claims:
        counted = [statement for statement in claim.statements if statement.counts]
        counts = Counter(statement.verdict for statement in counted)
        parts = ", ".join(f"{counts[verdict]} {_SHORT[verdict]}" for verdict in Verdict if counts[verdict])
        seeds = sorted({_num_seeds(statement) for statement in counted})
        shown = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}" if seeds else "0"
        lines.append([claim.name, claim.scale or MISSING, f"**{claim.verdict}**", parts or "no runs", shown])
    return aligned(header, lines, num_left=4)


_SHORT = {Verdict.HOLDS: "hold", Verdict.FAILS: "fail", Verdict.OPEN: "open", Verdict.IDENTITY: "by construction"}


def _of_scale(claim: Claim) -> list[str]:
    if claim.scale is None:
        return [f"**{claim.verdict}**: no runs. `{claim.command}`", ""]
    header = ["statement", "verdict", "effect [95 % interval]", "threshold", "n", "p"]
    lines = [f"### {claim.scale}: {claim.verdict}", ""]
    lines += aligned(header, [statement_cells(statement) for statement in claim.statements], num_left=2)
    if not all(statement.counts for statement in claim.statements):
        lines += ["", "\\* shown, but not a part of the claim."]
    runs = sorted({run for statement in claim.statements for run in statement.runs})
    lines += ["", f"More evidence: `{claim.command}`", "", f"<details><summary>{len(runs)} runs</summary>", ""]
    return [*lines, *(f"- `{run}`" for run in runs), "", "</details>", ""]


def _interval(statement: Statement) -> str:
    """With its kind where that is not what the preface says."""
    interval = statement.effect.interval if statement.effect else None
    if interval is None:
        return ""
    kind = "" if interval.method == STUDENT else f" ({interval.method})"
    return f" [{interval.low:.4g}, {interval.high:.4g}]{kind}"
