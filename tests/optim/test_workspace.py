"""What an update allocates, its u included: no more than the rule's docstring says."""

from __future__ import annotations

import weakref

import pytest
from optimizer_cases import draw, load_config, parameters
from options import options_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asyncpp.optim.groups import build_optimizer


class PeakMemory(TorchDispatchMode):
    """Most bytes alive at once, of the storages that torch's operations have made since the mode was entered."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._live_bytes: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {storage_key(tensor) for tensor in tensors_in((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            key, storage = storage_key(tensor), tensor.untyped_storage()
            if key not in given and key not in self._live_bytes:
                self._live_bytes[key] = storage.nbytes()
                weakref.finalize(storage, self._live_bytes.pop, key, None)
        self.peak_bytes = max(self.peak_bytes, sum(self._live_bytes.values()))
        return result


def tensors_in(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def storage_key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


# Copies of the group, Gram matrices (m x m for m <= n) and larger Gram matrices (n x n) of its matrices.
DOCUMENTED = {
    "adamw": (1, 0, 0),
    "adamw_split": (3, 0, 0),
    "nadam": (1 + 3 / 4, 0, 0),
    "sgd": (2, 0, 0),
    "lion": (2, 0, 0),
    "adan": (4, 0, 0),
    "mars": (2, 0, 0),
    "muon": (3, 3, 0),
    "normuon": (3, 3, 0),
    "soap": (2, 1, 6),
}
NUM_MATRICES, NUM_ROWS, NUM_COLUMNS = 4, 64, 128
GROUP_BYTES = 4 * NUM_MATRICES * NUM_ROWS * NUM_COLUMNS
SMALL_CHANGE = 1.01  # step counters, norms, orders of columns


def test_the_workspace_of_every_optimizer_is_documented():
    assert set(DOCUMENTED) == set(options_of("optimizer"))


def peak_copies(name: str, method: str) -> float:
    """The largest of several calls, of which one refreshes SOAP's bases, in copies of the group."""
    infos = parameters(*[(NUM_ROWS, NUM_COLUMNS)] * NUM_MATRICES)
    weights = draw(infos, seed=0)
    config = load_config(name, **({"precondition_frequency": 2} if name == "soap" else {}))
    (group,) = build_optimizer(config, infos, weights).groups
    peak_bytes = 0
    for step in range(4):
        gradients = draw(infos, seed=step + 1)
        with PeakMemory() as memory:
            if group.rule.needs_fresh_gradients:
                group.rule.observe_fresh_gradients(gradients)
            getattr(group.rule, method)(gradients, weights, group.peak_lr)
        peak_bytes = max(peak_bytes, memory.peak_bytes)
    return peak_bytes / GROUP_BYTES


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name != "adamw_split"])  # which has no plan
def test_a_plan_counts_the_documented_workspace(name):
    copies, grams, larger_grams = DOCUMENTED[name]
    documented = copies + grams * NUM_ROWS / NUM_COLUMNS + larger_grams * NUM_COLUMNS / NUM_ROWS
    config = load_config(name)
    largest = 4.0 if name == "nadam" else documented  # as if its largest tensor were all of the group
    for shape in ((NUM_ROWS, NUM_COLUMNS), (NUM_COLUMNS, NUM_ROWS)):
        assert config.workspace_copies(shape, needs_update=True) == largest


@pytest.mark.parametrize("name", DOCUMENTED)
def test_update_keeps_to_its_workspace(name):
    copies, grams, larger_grams = DOCUMENTED[name]
    documented = copies + grams * NUM_ROWS / NUM_COLUMNS + larger_grams * NUM_COLUMNS / NUM_ROWS
    assert 0.5 * documented < peak_copies(name, "update") <= SMALL_CHANGE * documented


@pytest.mark.parametrize("name, documented", [("adamw", 0.0), ("mars", 1.0)])
def test_step_needs_no_update_in_memory(name, documented):
    assert load_config(name).workspace_copies((NUM_ROWS, NUM_COLUMNS), needs_update=False) == documented
    assert peak_copies(name, "step") <= documented + 0.01
