"""The splitter against all splits there are."""

from __future__ import annotations

from itertools import accumulate, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpp.errors import ConfigError
from asyncpp.schedule.split import check_split, split_layers

COSTS = st.lists(st.integers(1, 20), min_size=1, max_size=9)


def stage_costs(costs: list[int], sizes: tuple[int, ...]) -> list[int]:
    ends = accumulate(sizes)
    return [sum(costs[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def all_splits(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, num_layers), num_stages - 1)
    return [tuple(b - a for a, b in zip((0, *cut), (*cut, num_layers), strict=True)) for cut in cuts]


@settings(max_examples=100, deadline=None)
@given(costs=COSTS, data=st.data())
def test_no_split_has_a_faster_slowest_stage(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))
    sizes = split_layers(costs, num_stages)
    check_split(sizes, len(costs), num_stages)
    best = min(max(stage_costs(costs, split)) for split in all_splits(len(costs), num_stages))
    assert max(stage_costs(costs, sizes)) == best


@settings(max_examples=100, deadline=None)
@given(costs=COSTS, data=st.data())
def test_the_same_among_the_splits_that_fit_into_memory(costs, data):
    """With a row of bytes and a limit of its own for each stage."""
    num_stages = data.draw(st.integers(1, len(costs)))
    row = st.lists(st.integers(0, 9), min_size=len(costs), max_size=len(costs))
    memory = data.draw(st.lists(row, min_size=num_stages, max_size=num_stages))
    limits = data.draw(st.lists(st.integers(0, 30), min_size=num_stages, max_size=num_stages))

    def used(split):
        starts = [sum(split[:stage]) for stage in range(num_stages)]
        return [sum(memory[s][starts[s] : starts[s] + size]) for s, size in enumerate(split)]

    fitting = [
        split
        for split in all_splits(len(costs), num_stages)
        if all(bytes_ <= limit for bytes_, limit in zip(used(split), limits, strict=True))
    ]
    if not fitting:
        with pytest.raises(ConfigError, match="no split of the layers into so many stages fits into memory"):
            split_layers(costs, num_stages, memory, limits)
    else:
        sizes = split_layers(costs, num_stages, memory, limits)
        assert sizes in fitting
        assert max(stage_costs(costs, sizes)) == min(max(stage_costs(costs, split)) for split in fitting)


def test_an_expensive_head_gets_fewer_layers_beside_it():
    embedding, layer, head = 1.0, 4.0, 9.0
    assert split_layers([embedding, *[layer] * 6, head], 2) == (5, 3)
    assert split_layers([1.0] * 6, 3) == (2, 2, 2)


def test_memory_by_layer_and_one_limit():
    assert split_layers([1, 1, 1, 9], 2) == (3, 1)
    assert split_layers([1, 1, 1, 9], 2, memory=[1, 1, 1, 1], memory_limit=2) == (2, 2)


def test_more_stages_than_layers():
    with pytest.raises(ConfigError, match=r"pipeline.num_stages=3: expected at most one stage for each of 2 layers"):
        split_layers([1.0, 1.0], 3)
    with pytest.raises(ConfigError, match=r"pipeline.num_stages=0: expected 1 or more"):
        split_layers([1.0, 1.0], 0)


@pytest.mark.parametrize(
    ("sizes", "accepted"),
    [
        ([3, 3], "add up to the model's 7 layers"),
        ([4, 4], "add up to the model's 7 layers"),
        ([7], "a number of layers for each of 2 stages"),
        ([7, 0], "at least one layer on every stage"),
        ([8, -1], "at least one layer on every stage"),
    ],
)
def test_a_custom_split_covers_the_model(sizes, accepted):
    with pytest.raises(ConfigError) as raised:
        check_split(sizes, num_layers=7, num_stages=2)
    assert str(raised.value).startswith(f"pipeline.split={sizes}: expected")
    assert accepted in str(raised.value)


def test_a_custom_split_that_does_is_accepted():
    check_split([4, 3], num_layers=7, num_stages=2)
