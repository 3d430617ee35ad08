"""The update: clipping by the norm of the whole model, and steps that are skipped."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from asyncpp.pipeline.clipping import ByGlobalNorm, ByPreviousNorm, ByStageNorm, Decision, Never, total_norm
from asyncpp.pipeline.simulator import BatchGradient
from asyncpp.pipeline.update import clip, parameter_norms
from asyncpp.trainer.setup import build_simulator


def part_of(*indices: int) -> SimpleNamespace:
    return SimpleNamespace(indices=indices)


def test_norms_3_and_4_with_limit_1_are_scaled_by_a_fifth():
    """One part's gradient has norm 3, the other's 4."""
    gradients = [[torch.full((9,), 1.0)], [torch.full((2, 2), 2.0)]]
    norms = [parameter_norms(part_of(part), owned) for part, owned in enumerate(gradients)]
    whole = norms[0] | norms[1]
    decisions = [ByGlobalNorm(1.0).decide(0, own, {0: whole}.get) for own in norms]
    assert total_norm(whole) == 5.0
    assert decisions == [Decision(clip_factor=0.2, skipped=False)] * 2
    for owned, decision in zip(gradients, decisions, strict=True):
        clip(owned, decision)
    assert gradients[0][0].tolist() == pytest.approx([0.2] * 9) and gradients[1][0][0, 0] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("clipping", "norms", "wanted"),
    [
        (ByGlobalNorm(5.0), {0: 3.0, 1: 4.0}, Decision(1.0, False)),  # at the limit
        (ByGlobalNorm(None), {0: 3.0, 1: 4.0}, Decision(1.0, False)),
        (ByGlobalNorm(1.0), {0: 0.0, 1: 0.0}, Decision(1.0, False)),
        (ByGlobalNorm(1.0), {0: 3.0, 1: math.inf}, Decision(1.0, True)),
        (ByGlobalNorm(None), {0: math.nan, 1: 4.0}, Decision(1.0, True)),
        (ByStageNorm(1.0), {0: 2.0, 1: 4.0}, Decision(0.5, False)),
        (ByStageNorm(1.0), {0: 2.0, 1: math.nan}, Decision(0.5, False)),  # the other stage's business
        (ByStageNorm(1.0), {0: math.nan, 1: 4.0}, Decision(1.0, True)),
        (Never(1.0), {0: 3.0, 1: 4.0}, Decision(1.0, False)),
        (Never(1.0), {0: 3.0, 1: math.nan}, Decision(1.0, True)),
        (ByPreviousNorm(1.0), {0: 3.0, 1: 4.0}, Decision(0.1, False)),  # the batch before had norm 10
        (ByPreviousNorm(1.0), {0: math.inf, 1: 4.0}, Decision(1.0, True)),
    ],
)
def test_a_stage_with_parameter_0_decides(clipping, norms, wanted):
    known = {7: norms, 6: {0: 6.0, 1: 8.0}}
    assert clipping.decide(7, {0: norms[0]}, known.get) == wanted


def test_the_first_batch_has_no_norm_before_it():
    assert ByPreviousNorm(1.0).decide(0, {0: 30.0}, {0: {0: 30.0}}.get) == Decision(1.0, False)


@pytest.mark.parametrize("clipping", [ByGlobalNorm(1.0), Never(None)])
def test_no_part_takes_its_own_norm_for_the_whole(clipping):
    with pytest.raises(LookupError, match="norms of batch 7 are not there"):
        clipping.decide(7, {0: 2.0}, {6: {0: 2.0}}.get)


def test_ways_of_clipping_that_do_not_wait_do_not_ask():
    asked: list[int] = []
    assert ByStageNorm(1.0).decide(7, {0: 2.0}, asked.append).clip_factor == 0.5
    assert asked == []
    ByPreviousNorm(1.0).decide(7, {0: 2.0}, asked.append)
    assert asked == [6]


def test_the_norm_does_not_depend_on_the_split():
    norms = dict(enumerate(torch.rand(50, dtype=torch.float64).tolist()))
    assert total_norm(dict(reversed(norms.items()))) == total_norm(norms)


def test_norms_are_in_double_precision():
    norms = parameter_norms(part_of(4, 7), [torch.full((4,), 1e30), torch.full((4,), 1e-30)])
    assert list(norms) == [4, 7] and list(norms.values()) == pytest.approx([2e30, 2e-30])


def test_clipping_is_by_the_norm_over_all_stages(make_config):
    """Cut into three stages or not, the same weights come out: no stage is clipped by its own norm."""
    results = []
    for num_stages in (1, 3):
        simulator = build_simulator(make_config("trainer.max_grad_norm=0.1", f"pipeline.num_stages={num_stages}"))
        for step in range(3):
            record = simulator.train_batch(step, torch.arange(40).view(4, 10) + step, 1.0)
            assert record.update.grad_norm > 0.1
            assert record.update.clip_factor == 0.1 / record.update.grad_norm
        results.append(simulator.newest_weights())
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("correction", ["none", "ef"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_skips_the_step_and_the_rule_still_holds(make_config, bad, correction):
    simulator = build_simulator(make_config(f"correction={correction}", "trainer.dtype=float64"))
    for step in range(3):
        simulator.train_batch(step, torch.arange(40).view(4, 10) + step, 1.0)
    part = simulator.states[0]
    before = [weight.clone() for weight in simulator.newest_weights()]
    state = {key: value.clone() for key, value in part.optimizer.state_dict().items()}
    last_update = [u.clone() for u in part.correction.state.get("previous_update", [])]
    honest = simulator.differentiate

    def poisoned(weights, windows):
        result = honest(weights, windows)
        result.gradients[3][0] = bad
        return result

    simulator.differentiate = poisoned
    record = simulator.train_batch(3, torch.arange(40).view(4, 10), 1.0)
    assert record.update.skipped
    decay = 1.0 - 3e-3 * 0.1
    expected = [decay * (x + u) for x, u in zip(before, last_update, strict=True)] if last_update else None
    expected = expected or [decay * x for x in before]
    for weight, wanted in zip(simulator.newest_weights(), expected, strict=True):
        torch.testing.assert_close(weight, wanted, rtol=0, atol=1e-15)
    assert all(torch.equal(state[key], value) for key, value in part.optimizer.state_dict().items())


def test_staleness_is_measured_from_the_versions(make_config):
    for delay, wanted in (("sync", [0, 0, 0, 0]), ("one_step", [0, 1, 1, 1]), ("constant", [0, 1, 2, 2])):
        simulator = build_simulator(make_config(f"delay={delay}"))
        windows = torch.arange(40).view(4, 10)
        measured = [simulator.train_batch(step, windows, 1.0).update.staleness_updates for step in range(4)]
        assert measured == wanted


def test_an_update_of_the_wrong_batch_is_refused(make_config):
    simulator = build_simulator(make_config())
    simulator.train_batch(0, torch.arange(40).view(4, 10), 1.0)
    with pytest.raises(LookupError, match="part 0 is at weight version 1, not 0"):
        simulator.train_batch(0, torch.arange(40).view(4, 10), 1.0)


def test_adaptive_dc_asgd_survives_a_gradient_that_is_not_finite(make_config):
    simulator = build_simulator(make_config("correction=dc_asgd", "correction.adaptive=true"))
    honest = simulator.differentiate

    def poisoned(weights, windows):
        return BatchGradient(math.nan, [g * math.nan for g in honest(weights, windows).gradients], None)

    simulator.differentiate = poisoned
    assert simulator.train_batch(0, torch.arange(40).view(4, 10), 1.0).update.skipped
    simulator.differentiate = honest
    assert not simulator.train_batch(1, torch.arange(40).view(4, 10), 1.0).update.skipped


@pytest.mark.parametrize(("correction", "wanted"), [("none", 0.0), ("ef", 1.0)])
def test_measured_state_is_the_documented_one(make_config, correction, wanted):
    config = make_config(f"correction={correction}", "pipeline.num_stages=2")
    measured = build_simulator(config).measurements()
    assert measured["optimizer_state_copies"] == 2.0
    assert measured["correction_state_copies"] == wanted == config.correction.state_copies
