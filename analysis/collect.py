"""Copy run folders reduced to what tables, figures and claims read of them: small enough to keep beside the results.

    python analysis/collect.py [runs=runs] [out=docs/results-tiny/runs] [json=false]

runs: a folder that holds run folders, at any depth. Copied are those that are finished and usable, and those that
failed and say at what: a verdict counts runs that diverged. The others are listed.
out: where they go, by the same relative paths. What is there already is replaced run by run; it is refused where links
lead from there to the runs themselves.
Kept: config.yaml without the keys that say where files lie, summary.json without the folders in an error's words,
environment.json without the command line, eval/*.json, and of metrics.jsonl every validation, training loss and probe,
to the last digit. Left out: times, learning rates, gradient norms, checkpoints and logs.
Exit codes: 0 done, 1 failed while running, 2 bad input, 75 interrupted (run again).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from asyncpp.arguments import run_command
from asyncpp.errors import require
from asyncpp.records import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    SUMMARY_FILE,
    read_metrics,
    write_atomically,
)
from outputs import output_folder, report_passed_over
from runs import UNREADABLE, PassedOver, UnusableRun, read_runs

LOCATIONS = (("runs_dir",), ("data", "root"))
FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s/'\"]+/)*(?=[^\s/'\"])")  # of an absolute path, but for its last name
SCORES_FOLDER = "eval"
DROPPED = ("time/", "optim/", "pipeline/")  # prefixes of the metrics that nothing here reads


@dataclass
class CollectOptions:
    runs: Path = Path("runs")
    out: Path = Path("docs/results-tiny/runs")
    json: bool = False


def main(options: CollectOptions) -> None:
    read = read_runs(options.runs)
    apart = not options.out.resolve().is_relative_to(options.runs.resolve())
    require(apart, "out", options.out, f"expected a folder outside runs={options.runs}")
    failed = {run.folder for run in read.failed}
    own = sorted({row["folder"] for row in read.rows} | failed)
    copy_of = {run: options.out / run.relative_to(options.runs) for run in own}
    passed_over = [entry for entry in read.passed_over if entry.folder not in failed]
    _require_apart(options, copy_of, [*own, *(entry.folder for entry in passed_over)])
    output_folder(options.out)
    copies = {}
    for run, copy in copy_of.items():
        try:
            copies[run] = reduce(run, copy)
        except UnusableRun as reason:
            passed_over.append(PassedOver(run, str(reason)))
    num_failed = len(failed & copies.keys())
    num_bytes = sum(file.stat().st_size for copy in copies.values() for file in copy.rglob("*") if file.is_file())
    if options.json:
        counts = {"num_runs": len(copies), "num_failed": num_failed, "num_bytes": num_bytes}
        print(json.dumps(counts | {"passed_over": [entry.as_dict() for entry in passed_over]}, indent=2))
        return
    report_passed_over(passed_over)
    told = f", {num_failed} of them failed" if num_failed else ""
    print(f"{len(copies)} runs{told}, {num_bytes / 1e6:.1f} MB: {options.out}")


def _require_apart(options: CollectOptions, copy_of: Mapping[Path, Path], runs: Iterable[Path]) -> None:
    """Raise ConfigError where writing a copy could reach a folder of ``runs``, whatever links lead from one to the
    other: it is that folder, holds it or lies within it.

    copy_of: the folder of each run's copy.
    """
    originals = {run.resolve() for run in runs}
    holders = {parent for original in originals for parent in original.parents}
    for run, copy in copy_of.items():
        for written in (copy.resolve(), (copy / SCORES_FOLDER).resolve()):
            apart = written not in holders and originals.isdisjoint((written, *written.parents))
            accepted = f"expected a folder apart from the runs; the copy of {run} would be written over one of them"
            require(apart, "out", options.out, accepted)


def reduce(run: Path, copy: Path) -> Path:
    """Write the reduced ``run`` to the folder ``copy``, the summary last, and return it.

    Raises UnusableRun, with nothing written, where it cannot be read whole: it may go while it is.
    """
    try:
        contents = dict(_reduced(run))
    except (*UNREADABLE, yaml.YAMLError) as error:
        raise UnusableRun(f"it cannot be read whole ({type(error).__name__})") from None
    for name, content in contents.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(copy / name, content)
    return copy


def _reduced(run: Path) -> Iterator[tuple[str, str | bytes]]:
    """Name and content of each file of the copy."""
    config = yaml.safe_load((run / CONFIG_FILE).read_text(encoding="utf-8"))
    for *sections, key in LOCATIONS:
        section: dict[str, Any] = config
        for name in sections:
            section = section.get(name, {})
        section.pop(key, None)
    yield CONFIG_FILE, yaml.safe_dump(config, sort_keys=False)
    environment = _json(run / ENVIRONMENT_FILE)
    if environment:
        kept = {key: value for key, value in environment.items() if key != "command"}
        yield ENVIRONMENT_FILE, json.dumps(kept, indent=2) + "\n"
    yield METRICS_FILE, "".join(f"{line}\n" for line in _metrics(run / METRICS_FILE))
    for scores in sorted((run / SCORES_FOLDER).glob("*.json")):
        if scores.is_file():
            yield f"{SCORES_FOLDER}/{scores.name}", scores.read_bytes()  # as it is: bad scores cost no run its losses
    yield SUMMARY_FILE, _summary((run / SUMMARY_FILE).read_text(encoding="utf-8"))


def _summary(text: str) -> str:
    """The summary ``text``, as it is unless it has an error, whose words may say where files lay."""
    summary = json.loads(text)
    if not summary.get("error"):
        return text
    return json.dumps(summary | {"error": FOLDERS.sub("", str(summary["error"]))}, indent=2) + "\n"


def _metrics(path: Path) -> list[str]:
    """The rows that are kept, as JSON without spaces."""
    rows = [{key: row[key] for key in row if not key.startswith(DROPPED)} for row in read_metrics(path)]
    return [json.dumps(row, separators=(",", ":")) for row in rows if row.keys() - {"step"}]


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except UNREADABLE:
        return {}


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", sys.argv[1:], CollectOptions, main))
