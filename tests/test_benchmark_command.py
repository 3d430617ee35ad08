"""What every benchmark's command does: options in, figures out, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.command import run_benchmark
from common.race import race

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@dataclass
class Options:
    size: int = 3
    json: bool = False


def measure(options: Options) -> dict:
    return {"holds": options.size > 2, "size": options.size, "tiny": {"step_ms": 1234.5678}}


@pytest.fixture
def run(monkeypatch, capsys):
    def run_with(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
        code = run_benchmark("How to call it.\n", Options, measure)
        return code, *capsys.readouterr()

    return run_with


def test_figures_are_one_document_or_a_line_each(run):
    assert run("json=true") == (0, json.dumps(measure(Options())) + "\n", "")
    code, out, _ = run()
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["holds", "True"],
        ["size", "3"],
        ["tiny"],
        ["step_ms", "1,234.568"],
    ]


def test_exit_codes(run):
    assert run("size=1")[0] == 1
    assert run("--help") == (0, "How to call it.\n", "")
    assert run("sise=1") == (2, "", "error: sise=1: no such key; did you mean size? accepted here: size, json\n")


def test_a_benchmark_says_how_it_is_called():
    command = [sys.executable, BENCHMARKS / "schedule_build.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "python benchmarks/schedule_build.py [schedule=two_bw" in done.stdout


def test_a_race_takes_turns_after_a_round_to_warm_up():
    now, calls = iter(range(100)), []
    contenders = {name: lambda name=name: calls.append(name) for name in ("ours", "theirs")}
    assert race(contenders, 3, 0.5, lambda: float(next(now))) == {"ours": 1.0, "theirs": 1.0}
    assert calls == ["ours", "theirs"] * 4
