"""Stages: consecutive layers, every layer and every parameter once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from asyncpp.hydra_command import compose_overrides, typed
from asyncpp.model.config import LlamaConfig
from asyncpp.model.layout import parameter_infos, tied_aliases
from asyncpp.pipeline.partition import indices_by_part, ranges, split_by_cost

TINY = typed(compose_overrides([]), "model")


@given(num_parts=st.integers(1, 12), more=st.integers(0, 20), vocab_size=st.integers(100, 200_000))
def test_a_split_covers_every_layer_in_order_and_spares_the_part_with_the_head(num_parts, more, vocab_size):
    num_layers = num_parts + more
    model: LlamaConfig = replace(TINY, num_layers=num_layers, vocab_size=vocab_size)
    layers = split_by_cost(model, 64, num_parts)
    sizes = [len(owned) for owned in layers]
    assert [layer for owned in layers for layer in owned] == list(range(num_layers))
    assert max(sizes[:-1], default=0) - min(sizes[:-1], default=0) <= max(1, sizes[0])
    assert sizes[-1] == min(sizes)


def test_every_parameter_has_one_part(make_config):
    parameters = parameter_infos(make_config().model)
    owned = indices_by_part(parameters, ranges([2, 1]))
    assert sorted(index for indices in owned for index in indices) == list(range(len(parameters)))
    names = [[parameters[index].name for index in indices] for indices in owned]
    assert names[0][0] == "embedding.weight"
    assert {name.split(".")[1] for name in names[0][1:]} == {"0", "1"}
    assert names[1][-2:] == ["norm.weight", "head.weight"]
    assert {name.split(".")[1] for name in names[1][:-2]} == {"2"}


def test_the_last_part_has_a_copy_of_a_tied_embedding(make_config):
    model = make_config("model.tied_embeddings=true").model
    parameters = parameter_infos(model)
    first, last = indices_by_part(parameters, ranges([2, 1]), tied_aliases(model))
    assert parameters[first[0]].name == parameters[last[0]].name == "embedding.weight"
    assert last == sorted(last)
    (whole,) = indices_by_part(parameters, ranges([3]), tied_aliases(model))
    assert whole == list(range(len(parameters)))
