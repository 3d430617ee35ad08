"""The benchmarks of the paper's Table 4: what lm-eval calls them, and where their data lies. No heavy imports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """task: lm-eval's name. task_folder: below lm_eval/tasks, where it is defined.

    repository: the hub's data set that this definition names. files: patterns of the files of it that are read.
    """

    task: str
    task_folder: str
    repository: str
    files: tuple[str, ...] = ("*",)


BENCHMARKS = (
    Benchmark("mmlu", "mmlu/default", "cais/mmlu"),
    Benchmark("arc_easy", "arc", "allenai/ai2_arc"),
    Benchmark("arc_challenge", "arc", "allenai/ai2_arc"),
    Benchmark("hellaswag", "hellaswag", "Rowan/hellaswag"),
    Benchmark("piqa", "piqa", "baber/piqa"),
    Benchmark("boolq", "super_glue/boolq", "aps/super_glue", ("README.md", "boolq/*")),
    Benchmark("openbookqa", "openbookqa", "allenai/openbookqa"),
)
