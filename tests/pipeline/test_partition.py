"""Stages: consecutive layers, every layer and every parameter once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncpp.model.layout import parameter_infos
from asyncpp.pipeline.partition import even_split, indices_by_stage


@given(num_stages=st.integers(1, 12), more=st.integers(0, 20))
def test_an_even_split_covers_every_layer_in_order(num_stages, more):
    num_layers = num_stages + more
    layers = even_split(num_layers, num_stages)
    assert [layer for owned in layers for layer in owned] == list(range(num_layers))
    sizes = [len(owned) for owned in layers]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_every_parameter_has_one_stage(make_config):
    parameters = parameter_infos(make_config().model)
    owned = indices_by_stage(parameters, even_split(3, 2))
    assert sorted(index for indices in owned for index in indices) == list(range(len(parameters)))
    names = [[parameters[index].name for index in indices] for indices in owned]
    assert names[0][0] == "embedding.weight"
    assert {name.split(".")[1] for name in names[0][1:]} == {"0", "1"}
    assert names[1][-2:] == ["norm.weight", "head.weight"]
    assert {name.split(".")[1] for name in names[1][:-2]} == {"2"}
