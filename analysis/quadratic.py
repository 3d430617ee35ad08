"""The delayed quadratic: which step sizes a delay still allows, by theory and by experiment.

On f(x) = h x² / 2 the gradient is h x, and SGD with momentum mu (torch's: b_t = mu b_{t-1} + g_t, u_t = eta b_t), a
delay of tau updates and error feedback of strength lambda make a linear recurrence of x. With the step a = eta h,

    x_{t+1} = x_t - (1 + lambda) u_t + lambda u_{t-1},      u_t = mu u_{t-1} + a x_{t-tau}

so that x_t = z^t solves it where

    p(z) = z^tau (z - 1)(z - mu) + a ((1 + lambda) z - lambda) = 0.

The weights converge where every root lies inside the unit circle. Without delay and feedback that is the textbook's
a < 2 (1 + mu); without momentum and feedback it is a < 2 sin(pi / (4 tau + 2)). A step moves the weights by
a / (1 - mu) of a steady gradient, the *effective step*, which is what curves over momentum are drawn in.

The experiment has no formula: it is asyncpp's own update (weight versions, SGD, correction) on many curvatures at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpp.correction.config import ErrorFeedbackConfig
from asyncpp.correction.error_feedback import ErrorFeedback
from asyncpp.optim.config import SGDConfig
from asyncpp.optim.groups import build_optimizer
from asyncpp.parameters import ParameterInfo, Role
from asyncpp.pipeline.clipping import Decision
from asyncpp.pipeline.delay import DelayProfile
from asyncpp.pipeline.part import PartState
from asyncpp.pipeline.update import step
from asyncpp.pipeline.weights import WeightVersions

STEPS_TRIED = np.geomspace(1e-3, 10.0, 600)  # of the experiment: 1.5 % apart
NUM_UPDATES = 300  # of the experiment, whose second and last thirds are compared
_NUM_ANGLES = 20_000


@dataclass(frozen=True)
class Method:
    """momentum: mu in [0, 1). delay: tau in updates. strength: lambda of error feedback, which acts under a delay."""

    momentum: float = 0.0
    delay: int = 0
    strength: float = 0.0

    def effective(self, step_size: float) -> float:
        """What a step of ``step_size`` = eta h comes to under a steady gradient, in units of it."""
        return step_size / (1.0 - self.momentum)


@cache
def largest_stable_step(method: Method) -> float:
    """The a from which on the weights do not converge.

    A root leaves the unit circle at some z = exp(i theta), where p(z) = 0 gives a = -z^tau (z-1)(z-mu) / ((1+lambda)z -
    lambda). Of the angles at which that is real and positive, the smallest a comes first.
    """
    strength = method.strength if method.delay > 0 else 0.0
    angles = np.linspace(0.0, np.pi, _NUM_ANGLES + 1)[1:]
    z = np.exp(1j * angles)
    z[-1] = -1.0  # exactly, where every a is real
    inertia = z**method.delay * (z - 1.0) * (z - method.momentum)
    steps = -inertia / ((1.0 + strength) * z - strength)
    crossings = np.flatnonzero(np.sign(steps.imag[:-1]) != np.sign(steps.imag[1:]))
    before, after = steps[crossings], steps[crossings + 1]
    share = before.imag / (before.imag - after.imag)  # of the way to where the imaginary part is zero
    candidates = before.real + share * (after.real - before.real)
    return float(candidates[candidates > 0.0].min())


@cache
def measured_largest_stable_step(method: Method) -> float:
    """The same by experiment: between the last of STEPS_TRIED that converges and the first that does not."""
    stable = converges(method, STEPS_TRIED)
    first = int(np.argmin(stable))
    if stable.all() or first == 0:
        raise ValueError(f"{method} has no largest stable step between {STEPS_TRIED[0]} and {STEPS_TRIED[-1]}")
    return float(np.sqrt(STEPS_TRIED[first - 1] * STEPS_TRIED[first]))


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """A second thread costs tensors this small many times what it does for them."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@_one_torch_thread()
@torch.no_grad()
def converges(method: Method, step_sizes: NDArray[np.float64], num_updates: int = NUM_UPDATES) -> NDArray[np.bool_]:
    """Whether each quadratic's weight, started at 1, is nearer to 0 in the last third of the updates than before it.

    step_sizes: (n), a quadratic each, of curvature h = a at a learning rate of 1.
    """
    curvatures = torch.from_numpy(step_sizes)
    weights = [torch.ones_like(curvatures)]
    infos = [ParameterInfo("x", Role.NORM, tuple(weights[0].shape))]
    optimizer = SGDConfig(name="sgd", lr=1.0, weight_decay=0.0, momentum=method.momentum, nesterov=False)
    feedback = ErrorFeedbackConfig(name="ef", strength=method.strength, decay_form="A")
    state = PartState(
        number=0,
        indices=[0],
        profile=DelayProfile((method.delay,)),
        versions=WeightVersions(weights, max_delay=method.delay),
        optimizer=build_optimizer(optimizer, infos, weights),
        correction=ErrorFeedback(feedback, weights, method.delay, num_updates),
    )
    third = num_updates // 3
    farthest = torch.zeros(3, len(step_sizes), dtype=torch.float64)
    for batch in range(3 * third):
        version = state.version_for(batch)
        gradients = [curvatures * state.versions.at(version)[0]]
        step(state, gradients, Decision(clip_factor=1.0, skipped=False), batch, batch - version, lr_factor=1.0)
        part = farthest[batch // third]
        torch.maximum(part, state.versions.current[0].abs(), out=part)
    return ((farthest[2] <= farthest[1]) & farthest[2].isfinite()).numpy()
