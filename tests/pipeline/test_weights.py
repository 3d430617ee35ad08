"""Weight versions: the right one for every batch, none that changes while it may be read, memory used again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncpp.pipeline.delay import version_of
from asyncpp.pipeline.weights import WeightVersions


@given(delay=st.integers(0, 6), num_batches=st.integers(1, 20))
def test_every_batch_finds_its_version(delay, num_batches):
    """Version v holds the value v, so a version that was overwritten or misnumbered shows."""
    versions = WeightVersions([torch.zeros(3)], delay)
    for batch in range(num_batches):
        version = version_of(batch, delay)
        assert versions.at(version)[0].tolist() == [version] * 3
        versions.open_next()[0].add_(1.0)
        assert versions.newest == batch + 1


@given(delay=st.integers(0, 6))
def test_memory_is_one_buffer_a_version_alive(delay):
    versions = WeightVersions([torch.zeros(3)], delay)
    pointers = {versions.at(0)[0].data_ptr()}
    for _ in range(20):
        pointers.add(versions.open_next()[0].data_ptr())
    assert len(pointers) == delay + 1


@pytest.mark.parametrize("version", [-1, 0, 3])
def test_a_version_that_is_not_held_is_refused(version):
    versions = WeightVersions([torch.zeros(1)], max_delay=1)
    versions.open_next()
    versions.open_next()
    with pytest.raises(LookupError, match=f"weight version {version} is not held, only 1 to 2"):
        versions.at(version)
