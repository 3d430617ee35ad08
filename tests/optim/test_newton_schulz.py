"""Newton-Schulz: against the exact orthogonal factor, against its plain loop, and at the edges of the number range."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.optim.matrix import newton_schulz
from torch import Tensor

from asyncpp.optim.newton_schulz import ITERATIONS, Iteration, orthogonalize_


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def orthogonalize(matrices: Tensor, iteration: Iteration, dtype: torch.dtype) -> Tensor:
    return orthogonalize_(matrices.clone(), iteration, dtype)


def with_spectrum(seed: int, num_rows: int, num_columns: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """A random matrix with these singular values, and its exact orthogonal factor."""
    left, _, right = torch.linalg.svd(normal(seed, num_rows, num_columns), full_matrices=False)
    return (left * values) @ right, left @ right


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 4),
    num_rows=st.integers(1, 24),
    num_columns=st.integers(1, 24),
    name=st.sampled_from(sorted(ITERATIONS)),
)
def test_batch_equals_plain_loop(seed, count, num_rows, num_columns, name):
    matrices = normal(seed, count, num_rows, num_columns)
    batched = orthogonalize(matrices, ITERATIONS[name], torch.float64)
    looped = torch.stack([newton_schulz(matrix, name) for matrix in matrices])
    torch.testing.assert_close(batched, looped, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(96, 96), (256, 96), (96, 256), (17, 5)], ids=str)
def test_a_matrix_does_not_depend_on_its_batch(dtype, shape):
    matrices = normal(0, 5, *shape, dtype=torch.float32)
    together = orthogonalize(matrices, ITERATIONS["quintic"], dtype)
    for count in (1, 2, 3):
        part = orthogonalize(matrices[1 : 1 + count], ITERATIONS["quintic"], dtype)
        assert torch.equal(part, together[1 : 1 + count])


@pytest.mark.parametrize("shape", [(64, 64), (48, 96), (96, 48)], ids=str)
def test_singular_values_come_near_one(shape):
    """A 1/k spectrum, as gradients have. Jordan's quintic stops in [0.68, 1.13] by intent; Polar Express is nearer."""
    size = min(shape)
    matrix, exact = with_spectrum(0, *shape, 1.0 / torch.arange(1, size + 1, dtype=torch.float64))
    errors = {}
    for name, low, high in (("quintic", 0.66, 1.21), ("polar_express", 0.85, 1.15)):
        result = orthogonalize(matrix.unsqueeze(0), ITERATIONS[name], torch.float64)[0]
        values = torch.linalg.svdvals(result)
        assert low < values.min() and values.max() < high
        errors[name] = ((result - exact).norm() / exact.norm()).item()
    assert errors["polar_express"] < errors["quintic"] < 0.25


def test_bf16_products_stay_close_to_fp32():
    matrices = normal(0, 3, 64, 96, dtype=torch.float32)
    exact = orthogonalize(matrices, ITERATIONS["quintic"], torch.float32)
    rounded = orthogonalize(matrices, ITERATIONS["quintic"], torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() / exact.norm() < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(ITERATIONS))
def test_size_of_the_input_does_not_matter_where_it_is_not_tiny(name, dtype):
    matrices = normal(0, 2, 24, 40, dtype=torch.float32)
    expected = orthogonalize(matrices, ITERATIONS[name], dtype)
    for size in (2.0**-4, 2.0**20, 2.0**40):  # powers of two, so that the matrices' own digits are the same
        result = orthogonalize(matrices * size, ITERATIONS[name], dtype)
        torch.testing.assert_close(result, expected, rtol=0.0, atol=1e-5 if dtype is torch.float32 else 0.05)


@pytest.mark.parametrize("name", sorted(ITERATIONS))
@pytest.mark.parametrize("size", [1e20, 1e30, 1e36])
def test_huge_matrices_are_orthogonalised_by_their_signs(name, size):
    matrices = normal(0, 2, 24, 40, dtype=torch.float32).sign()
    expected = orthogonalize(matrices, ITERATIONS[name], torch.float32)
    result = orthogonalize(matrices * size, ITERATIONS[name], torch.float32)
    torch.testing.assert_close(result, expected, rtol=0.0, atol=1e-5)
    largest = orthogonalize(matrices * torch.finfo(torch.float32).max, ITERATIONS[name], torch.float32)
    torch.testing.assert_close(largest, expected, rtol=0.0, atol=1e-3)  # one over its norm is a subnormal number


@pytest.mark.parametrize("name", sorted(ITERATIONS))
def test_zero_and_tiny_matrices(name):
    zero = orthogonalize(torch.zeros(2, 8, 5), ITERATIONS[name], torch.float32)
    assert torch.equal(zero, torch.zeros(2, 8, 5))
    tiny = orthogonalize(torch.full((1, 8, 5), 1e-30), ITERATIONS[name], torch.float32)
    assert tiny.isfinite().all() and tiny.abs().max() < 1e-15
