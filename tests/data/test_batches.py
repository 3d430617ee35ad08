from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpp.data.batches import Batches, validation_windows
from asyncpp.data.manifest import Shard, Split
from asyncpp.data.tokens import PreparedSource, Tokens, TokenStream
from asyncpp.errors import ConfigError


def make_stream(folder, tokens: np.ndarray, shard_tokens: int) -> TokenStream:
    shards = []
    for start in range(0, len(tokens), shard_tokens):
        piece = tokens[start : start + shard_tokens]
        np.save(folder / f"{start}.npy", piece)
        shards.append(Shard(f"{start}.npy", len(piece), piece.nbytes + 128, ""))
    return TokenStream(folder, Split(1, len(tokens), int(tokens.max()), tuple(shards)))


def make_tokens(factory, *sizes: int, shard_tokens: int = 10**9, weights: tuple[float, ...] = (1.0,)) -> Tokens:
    """Sources whose tokens count up, so that a window tells where it was cut: source k begins at 10,000 k."""
    sources = []
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        stream = make_stream(
            factory.mktemp("tokens"), np.arange(size, dtype=np.uint16) + np.uint16(10000 * number), shard_tokens
        )
        sources.append(PreparedSource(f"source {number}", weight, str(number), stream, stream))
    return Tokens(tuple(sources), 2**16, 0)


def first_tokens(batches: Batches, steps: range) -> list[int]:
    return [int(row[0]) for step in steps for row in batches.batch(step)]


@pytest.mark.parametrize("shard_tokens", [1, 2, 7, 16, 17, 33, 1000])
def test_windows_are_slices_of_all_tokens_whatever_the_shards(tmp_path, shard_tokens):
    tokens = np.random.default_rng(0).integers(0, 2**16, 333, dtype=np.uint16)
    stream = make_stream(tmp_path, tokens, shard_tokens)
    windows = np.random.default_rng(1).permutation(stream.num_windows(16))
    expected = [tokens[16 * window : 16 * window + 17] for window in windows]
    assert np.array_equal(stream.windows(windows, 16), expected)
    assert stream.windows(windows, 16).dtype == np.int64
    assert len(windows) == (333 - 1) // 16


@st.composite
def layouts(draw, batch_size: int) -> tuple[int, int, int]:
    """Ranks and micro-batches that a batch can be cut into, and workers that read it."""
    ranks = draw(st.sampled_from([n for n in range(1, batch_size + 1) if batch_size % n == 0]))
    rows = batch_size // ranks
    micro_batches = draw(st.sampled_from([n for n in range(1, rows + 1) if rows % n == 0]))
    return ranks, micro_batches, draw(st.integers(1, 4))


def read_in(layout: tuple[int, int, int], steps: range, make: Callable[[], Batches]) -> np.ndarray:
    """All rows of ``steps``: each rank has a Batches of its own, and its workers take parts of them in any order."""
    num_ranks, num_micro_batches, num_workers = layout
    ranks = [make() for _ in range(num_ranks)]
    parts = [
        (step, micro_batch, num_micro_batches, rank, num_ranks)
        for step in steps
        for rank in range(num_ranks)
        for micro_batch in range(num_micro_batches)
    ]
    order = np.random.default_rng(len(parts)).permutation(len(parts))
    with ThreadPoolExecutor(num_workers) as workers:
        read = list(workers.map(lambda part: ranks[part[3]].micro_batch(*part), [parts[place] for place in order]))
    return np.concatenate([read[place] for place in np.argsort(order)])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_in_any_layout_an_epoch_has_every_window_once(tmp_path_factory, data):
    num_tokens, sequence_length = data.draw(st.integers(9, 700)), data.draw(st.integers(1, 8))
    batch_size, seed = data.draw(st.sampled_from([1, 4, 7, 12])), data.draw(st.integers(0, 2**32))
    tokens = make_tokens(tmp_path_factory, num_tokens, shard_tokens=data.draw(st.integers(1, 700)))

    def make() -> Batches:
        return Batches(tokens, sequence_length, batch_size, seed)

    (num_windows,) = make().num_windows
    assert num_windows == (num_tokens - 1) // sequence_length
    epoch = data.draw(st.integers(0, 3))
    first, last = epoch * num_windows, (epoch + 1) * num_windows
    steps = range(first // batch_size, last // batch_size + 1)
    rows = read_in(data.draw(layouts(batch_size)), steps, make)[first % batch_size :][:num_windows]
    assert sorted(rows[:, 0]) == [sequence_length * window for window in range(num_windows)]
    assert np.array_equal(rows, rows[:, :1] + np.arange(sequence_length + 1))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), step=st.integers(0, 10**9), batch_size=st.sampled_from([1, 8, 12, 30]))
def test_every_layout_reads_the_same_global_batch(tmp_path_factory, data, step, batch_size):
    tokens = make_tokens(tmp_path_factory, 5000, shard_tokens=300)

    def make() -> Batches:
        return Batches(tokens, 8, batch_size, seed=3)

    assert np.array_equal(read_in(data.draw(layouts(batch_size)), range(step, step + 1), make), make().batch(step))


@settings(max_examples=15, deadline=None)
@given(data=st.data(), start=st.integers(0, 10**9), stops=st.lists(st.integers(1, 20), min_size=2, max_size=4))
def test_resuming_with_other_layouts_goes_on_with_the_same_stream(tmp_path_factory, data, start, stops):
    """Every life begins with new objects, and with other ranks, micro-batches and workers, once or several times."""
    tokens = make_tokens(tmp_path_factory, 3000)

    def make() -> Batches:
        return Batches(tokens, 8, 12, seed=5)

    ends = [start + sum(stops[:life]) for life in range(len(stops) + 1)]
    lives = [read_in(data.draw(layouts(12)), range(*life), make) for life in pairwise(ends)]
    unbroken = make()
    assert np.array_equal(
        np.concatenate(lives), np.concatenate([unbroken.batch(step) for step in range(ends[0], ends[-1])])
    )


def test_steps_may_be_read_in_any_order(tmp_path_factory):
    tokens = make_tokens(tmp_path_factory, 60000)
    in_order = Batches(tokens, 4, 100, seed=1)
    expected = [in_order.batch(step) for step in range(100)]
    jumping = Batches(tokens, 4, 100, seed=1)
    for step in np.random.default_rng(0).permutation(100):
        assert np.array_equal(jumping.batch(int(step)), expected[step])


def test_a_batch_larger_than_a_plan(tmp_path_factory):
    tokens = make_tokens(tmp_path_factory, 60000)
    large, small = Batches(tokens, 4, 10000, seed=1), Batches(tokens, 4, 100, seed=1)
    assert np.array_equal(large.batch(1), np.concatenate([small.batch(step) for step in range(100, 200)]))


def test_seeds_and_epochs_have_orders_of_their_own(tmp_path_factory):
    tokens = make_tokens(tmp_path_factory, 3201)
    one, two = Batches(tokens, 32, 100, seed=0), Batches(tokens, 32, 100, seed=1)
    orders = [first_tokens(one, range(1)), first_tokens(one, range(1, 2)), first_tokens(two, range(1))]
    assert len(set(map(tuple, orders))) == 3
    assert len({tuple(sorted(order)) for order in orders}) == 1


def test_labels_are_the_inputs_one_token_later(tmp_path_factory):
    batch = Batches(make_tokens(tmp_path_factory, 1000), 16, 8, seed=0).batch(0)
    assert batch.shape == (8, 17)
    assert np.array_equal(batch[:, 1:], batch[:, :-1] + 1)


@pytest.mark.parametrize("step", [0, 10**9, 10**12])
def test_any_step_is_within_reach(tmp_path_factory, step):
    assert Batches(make_tokens(tmp_path_factory, 1000), 16, 8, seed=0).batch(step).shape == (8, 17)


def test_a_source_shorter_than_a_window_is_refused(tmp_path_factory):
    with pytest.raises(ConfigError, match=r"data\.sequence_length=16: expected less than 16"):
        Batches(make_tokens(tmp_path_factory, 16), 16, 8, seed=0)


def test_a_batch_that_does_not_divide_is_refused(tmp_path_factory):
    with pytest.raises(ConfigError, match=r"trainer\.batch_size=8: expected a multiple of 3 ranks x 1"):
        Batches(make_tokens(tmp_path_factory, 100), 16, 8, seed=0).micro_batch(0, 0, 1, rank=0, num_ranks=3)


def test_validation_windows_are_spread_over_all_and_always_the_same(tmp_path_factory):
    tokens = make_tokens(tmp_path_factory, 1001)
    windows = validation_windows(tokens, 10, 25)
    assert windows[:, 0].tolist() == list(range(0, 1000, 40))
    assert np.array_equal(windows, validation_windows(tokens, 10, 25))


def test_more_validation_windows_than_there_are_is_refused(tmp_path_factory):
    with pytest.raises(ConfigError, match=r"data\.num_validation_sequences=101: .*only 100; .*validation_fraction"):
        validation_windows(make_tokens(tmp_path_factory, 1001), 10, 101)


@settings(max_examples=12, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=4),
    start=st.integers(0, 10**6),
    batch_size=st.sampled_from([1, 8, 64]),
)
def test_a_mixture_keeps_its_weights_and_every_source_its_epochs(tmp_path_factory, weights, start, batch_size):
    sizes = [801, 401, 1601, 201][: len(weights)]
    tokens = make_tokens(tmp_path_factory, *sizes, weights=tuple(weights))
    batches = Batches(tokens, 8, batch_size, seed=2)
    num_samples = 2048
    starts = np.array(first_tokens(batches, range(num_samples // batch_size)))
    for number, size in enumerate(sizes):
        mine = starts[starts // 10000 == number] - 10000 * number
        share = weights[number] / sum(weights)
        assert abs(len(mine) - share * num_samples) <= len(weights) + 1
        num_windows = (size - 1) // 8
        for epoch in range(len(mine) // num_windows):
            assert sorted(mine[epoch * num_windows :][:num_windows]) == list(range(0, 8 * num_windows, 8))
        rest = Counter(mine[len(mine) // num_windows * num_windows :].tolist())
        assert max(rest.values(), default=1) == 1
    assert np.array_equal(batches.batch(start), Batches(tokens, 8, batch_size, seed=2).batch(start))


def test_a_mixture_evaluates_every_source_by_weight(tmp_path_factory):
    windows = validation_windows(make_tokens(tmp_path_factory, 1001, 1001, weights=(3.0, 1.0)), 10, 40)
    assert Counter((windows[:, 0] // 10000).tolist()) == {0: 30, 1: 10}


def test_the_digest_tells_tokens_apart(tmp_path_factory):
    one = make_tokens(tmp_path_factory, 100)
    two = make_tokens(tmp_path_factory, 100, 100, weights=(1.0, 1.0))
    assert Batches(one, 4, 4, 0).digest == Batches(one, 8, 2, 1).digest != Batches(two, 4, 4, 0).digest
