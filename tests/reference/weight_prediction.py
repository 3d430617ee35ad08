"""Error feedback and weight prediction, each from its own definition, on functions of a list of tensors.

Both take an ``update_of(gradients, weights)`` that returns u and keeps the optimizer's state, and a
``gradient_of(batch, weights)``; both return the weights at which each batch was, or would be, differentiated.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Tensors = list[Tensor]


def error_feedback(
    start: Tensors,
    gradient_of: Callable[[int, Tensors], Tensors],
    update_of: Callable[[Tensors, Tensors], Tensors],
    num_batches: int,
    decay: float,
    strength: float,
) -> list[Tensors]:
    """x_1 = W(x_0) - u_0, then x_{t+1} = W(x_t) - u_t - lambda (u_t - W(u_{t-1})), with every x kept."""
    versions = [start]
    previous: Tensors = []
    for batch in range(num_batches):
        newest, stale = versions[batch], versions[max(batch - 1, 0)]
        update = update_of(gradient_of(batch, stale), newest)
        if batch == 0:
            following = [decay * x - u for x, u in zip(newest, update, strict=True)]
        else:
            following = [
                decay * x - u - strength * (u - decay * before)
                for x, u, before in zip(newest, update, previous, strict=True)
            ]
        versions.append(following)
        previous = [u.clone() for u in update]
    return versions


def weight_prediction(
    start: Tensors,
    gradient_of: Callable[[int, Tensors], Tensors],
    update_of: Callable[[Tensors, Tensors], Tensors],
    num_batches: int,
    decay: float,
    strength: float,
) -> list[Tensors]:
    """z_{t+1} = W(z_t) - u_t, where batch t + 2 is differentiated at the prediction z_{t+1} - lambda u_t.

    The first update is not late, so what follows it is no prediction but the synchronous W(z_0) - u_0 itself, and
    z_1 is the point that this would have been predicted from.
    """
    predictions = [start]
    z = start
    for batch in range(num_batches):
        update = update_of(gradient_of(batch, predictions[max(batch - 1, 0)]), z)
        if batch == 0:
            predictions.append([decay * x - u for x, u in zip(z, update, strict=True)])
            z = [x + strength * u for x, u in zip(predictions[-1], update, strict=True)]
        else:
            z = [decay * x - u for x, u in zip(z, update, strict=True)]
            predictions.append([x - strength * u for x, u in zip(z, update, strict=True)])
    return predictions
