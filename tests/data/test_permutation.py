import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpp.data.permutation import permute


@settings(max_examples=50)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**40))
def test_a_permutation_hits_every_number_once(size, seed, epoch):
    assert sorted(permute(np.arange(size), size, seed, epoch)) == list(range(size))


def test_an_element_does_not_depend_on_its_neighbours():
    positions = np.arange(1000)
    whole = permute(positions, 1000, 7, 3)
    assert [permute(positions[n : n + 1], 1000, 7, 3)[0] for n in range(0, 1000, 37)] == list(whole[::37])


def test_seed_and_epoch_choose_the_permutation():
    positions = np.arange(1000)
    orders = {permute(positions, 1000, seed, epoch).tobytes() for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_one_key_for_each_element():
    positions, epochs = np.arange(100) % 50, np.arange(100) // 50
    together = permute(positions, 50, 1, epochs)
    assert list(together) == [*permute(np.arange(50), 50, 1, 0), *permute(np.arange(50), 50, 1, 1)]


def test_large_ranges_take_no_memory():
    size = 10**13
    result = permute(np.arange(size - 1000, size), size, 0, 0)
    assert len(set(result)) == 1000
    assert result.min() >= 0 and result.max() < size


@pytest.mark.parametrize("size", [5, 64, 1000])
def test_places_are_uniform(size):
    """Chi-square over where numbers land, 400 epochs; its mean is the degrees of freedom, its variance twice that."""
    epochs = np.repeat(np.arange(400), size)
    landed = permute(np.tile(np.arange(size), 400), size, 11, epochs).reshape(400, size)
    counts = np.stack([np.bincount(landed[:, column], minlength=size) for column in range(min(size, 50))])
    expected = 400 / size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    degrees = counts.shape[0] * (size - 1)
    assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("size", [64, 1000])
def test_neighbours_are_not_kept_together(size):
    order = permute(np.arange(size * 50) % size, size, 5, np.arange(size * 50) // size).reshape(50, size)
    adjacent = np.mean(np.diff(order, axis=1) == 1)
    assert adjacent < 3 / size
