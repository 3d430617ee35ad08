from collections import Counter
from concurrent.futures import ThreadPoolExecutor

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


@settings(max_examples=25, deadline=None)
@given(
    num_tokens=st.integers(9, 700),
    batch_size=st.sampled_from([1, 4, 12]),
    sequence_length=st.integers(1, 8),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 3),
)
def test_an_epoch_has_every_window_once(tmp_path_factory, num_tokens, batch_size, sequence_length, seed, epoch):
    batches = Batches(make_tokens(tmp_path_factory, num_tokens), sequence_length, batch_size, seed)
    (num_windows,) = batches.num_windows
    assert num_windows == (num_tokens - 1) // sequence_length
    first, last = epoch * num_windows, (epoch + 1) * num_windows
    starts = first_tokens(batches, range(first // batch_size, last // batch_size + 1))
    starts = starts[first % batch_size :][:num_windows]
    assert sorted(starts) == [sequence_length * window for window in range(num_windows)]


@settings(max_examples=25, deadline=None)
@given(
    layout=st.sampled_from([(1, 1), (1, 6), (2, 3), (3, 2), (6, 1), (12, 1), (2, 6)]),
    step=st.integers(0, 10**9),
    workers=st.integers(1, 4),
)
def test_every_layout_reads_the_same_global_batch(tmp_path_factory, layout, step, workers):
    num_ranks, num_micro_batches = layout
    tokens = make_tokens(tmp_path_factory, 5000, shard_tokens=300)
    parts = [(micro_batch, rank) for rank in range(num_ranks) for micro_batch in range(num_micro_batches)]
    ranks = [Batches(tokens, 8, 12, seed=3) for _ in range(num_ranks)]

    def read(part):
        micro_batch, rank = part
        return ranks[rank].micro_batch(step, micro_batch, num_micro_batches, rank, num_ranks)

    with ThreadPoolExecutor(workers) as pool:
        together = np.concatenate(list(pool.map(read, parts)))
    assert np.array_equal(together, Batches(tokens, 8, 12, seed=3).batch(step))


@settings(max_examples=15, deadline=None)
@given(stops=st.lists(st.integers(1, 40), min_size=1, max_size=3), sizes=st.permutations([2, 3, 4]))
def test_resuming_twice_with_other_layouts_goes_on_with_the_same_stream(tmp_path_factory, stops, sizes):
    """The number of micro-batches changes at every resumption; each life begins with a new object."""
    tokens = make_tokens(tmp_path_factory, 3000)
    unbroken = np.concatenate([Batches(tokens, 8, 12, seed=5).batch(step) for step in range(sum(stops) + 2)])
    step, read = 0, []
    for stop, num_micro_batches in zip([*stops, 2], [*sizes, 6], strict=False):
        batches = Batches(tokens, 8, 12, seed=5)
        for _ in range(stop):
            read += [batches.micro_batch(step, part, num_micro_batches) for part in range(num_micro_batches)]
            step += 1
    assert np.array_equal(np.concatenate(read), unbroken[: step * 12])


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
