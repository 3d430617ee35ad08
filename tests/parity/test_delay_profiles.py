"""Delays that differ from stage to stage: PipeDream is a hand-written pipeline with a stash, 2BW is one step."""

from __future__ import annotations

import pytest
import torch
from reference.pipedream import PipeDreamStage, train

from asyncpp.model.init import initial_weights
from asyncpp.model.layout import parameter_infos
from asyncpp.model.llama import build
from asyncpp.pipeline.partition import indices_by_part
from asyncpp.trainer.setup import build_simulator
from parity.conftest import NUM_STEPS, learning_rates
from parity.test_hand_written_loops import ADAMW, simulate

STEPS = f"trainer.num_steps={NUM_STEPS}"


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_pipedream_is_a_hand_written_pipeline_with_a_stash(make_config, windows_by_step, num_stages):
    config = make_config(
        STEPS, "delay=pipedream", f"pipeline.num_stages={num_stages}", "model.num_layers=4",
        "trainer.max_grad_norm=null",
    )  # fmt: skip
    parameters = parameter_infos(config.model)
    weights = initial_weights(config.model, config.seed)
    layers = config.layers
    stages = [
        PipeDreamStage(
            build(config.model, layers[number], first=number == 0, last=number == num_stages - 1),
            {parameters[i].name: weights[i] for i in owned},
            warm_up=num_stages - 1 - number,
            num_batches=NUM_STEPS,
            **ADAMW,
        )
        for number, owned in enumerate(indices_by_part(parameters, layers))
    ]
    expected = train(stages, windows_by_step, learning_rates(config))
    losses, ours = simulate(config, windows_by_step)
    assert losses == expected
    by_name = {name: weight for stage in stages for name, weight in stage.weights.items()}
    for parameter, weight in zip(parameters, ours, strict=True):
        assert torch.equal(weight, by_name[parameter.name]), parameter.name


@pytest.mark.parametrize("correction", ["none", "ef"])
def test_two_bw_is_one_step_on_any_number_of_stages(make_config, windows_by_step, correction):
    one_step = simulate(make_config(STEPS, "delay=one_step", f"correction={correction}"), windows_by_step)
    for num_stages in (1, 2, 3):
        two_bw = simulate(
            make_config(STEPS, "delay=from_schedule", f"pipeline.num_stages={num_stages}", f"correction={correction}"),
            windows_by_step,
        )
        assert two_bw[0] == one_step[0]
        assert all(torch.equal(a, b) for a, b in zip(two_bw[1], one_step[1], strict=True))


def test_synchronous_schedules_give_no_delay_and_wpipe_half_of_one(make_config, windows_by_step):
    sync = simulate(make_config(STEPS, "delay=sync"), windows_by_step)
    gpipe = make_config(STEPS, "delay=from_schedule", "pipeline.schedule=gpipe", "pipeline.num_stages=3")
    assert simulate(gpipe, windows_by_step)[0] == sync[0]
    wpipe = make_config(
        STEPS, "delay=from_schedule", "pipeline.schedule=wpipe", "pipeline.num_stages=2", "model.num_layers=4"
    )
    assert sorted(wpipe.delay.profile(wpipe.pipeline).delays) == [0, 0, 1, 1]


def test_sampled_delays_have_the_given_odds_and_are_the_same_every_time(make_config, windows_by_step):
    config = make_config(STEPS, "delay=sampled", "delay.probabilities=[0.2,0,0.8]")
    profile = config.delay.profile(config.pipeline)
    drawn = [profile.delay(0, batch) for batch in range(2000)]
    assert set(drawn) == {0, 2}
    assert abs(drawn.count(2) / 2000 - 0.8) < 0.03
    assert drawn == [profile.delay(0, batch) for batch in range(2000)]
    simulator = build_simulator(config)
    measured = [
        simulator.train_batch(step, windows, 1.0).update.staleness_updates
        for step, windows in enumerate(windows_by_step)
    ]
    assert measured == [min(step, delay) for step, delay in enumerate(drawn[:NUM_STEPS])]


def test_a_certain_delay_is_a_constant_one(make_config, windows_by_step):
    sampled = simulate(make_config(STEPS, "delay=sampled", "delay.probabilities=[0,1]"), windows_by_step)
    assert sampled[0] == simulate(make_config(STEPS, "delay=one_step"), windows_by_step)[0]
