"""Every kernel against torch in float64, and what it promises of bits."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tinker_engine.native import ops

CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(not ops.serves(torch.float32, CPU), reason="there is no C compiler")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def close(actual: Tensor, expected: Tensor, tolerance: float = 2e-6) -> None:
    """As far apart as the rounding of a sum of about unit numbers allows."""
    scale = max(1.0, float(expected.abs().max()))
    assert float((actual.double() - expected).abs().max()) <= tolerance * scale


# --- products -----------------------------------------------------------------------------------

SHAPES = [(1, 1, 1), (3, 24, 16), (5, 25, 193), (64, 47, 192), (67, 960, 576), (130, 100, 1000), (2, 49, 3)]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_product_of_any_shape(m: int, n: int, k: int):
    x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    expected = x.double() @ weight.double().T
    close(ops.product(x, ops.pack(weight)), expected)
    close(ops.product(x, ops.pack(weight), bias), expected + bias)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_product_of_transposed_views(m: int, n: int, k: int):
    x, weight = torch.randn(k, m).T, torch.randn(k, n).T
    close(ops.product(x, ops.pack(weight)), x.double() @ weight.double().T)


def test_product_into_some_columns():
    x, weight, y = torch.randn(9, 300), torch.randn(30, 300), torch.randn(9, 50)
    before = y.clone()
    ops.add_product(y[:, 10:40], x, ops.pack(weight), scale=0.5)
    close(y[:, 10:40], before[:, 10:40] + 0.5 * (x.double() @ weight.double().T))
    ops.put_product(y[:, 10:40], x, ops.pack(weight), scale=2.0)
    close(y[:, 10:40], 2 * (x.double() @ weight.double().T))
    assert torch.equal(y[:, :10], before[:, :10])
    assert torch.equal(y[:, 40:], before[:, 40:])


@pytest.mark.parametrize(("tokens", "m", "n"), [(1, 1, 1), (193, 5, 25), (400, 96, 100), (64, 130, 48)])
def test_gradient_of_a_weight(tokens: int, m: int, n: int):
    x, w = torch.randn(tokens, m + 3)[:, 2 : m + 2], torch.randn(tokens, n + 5)[:, :n]
    close(ops.gradient(x, w, scale=0.25), 0.25 * (x.double().T @ w.double()))


def test_of_no_rows():
    assert torch.equal(ops.gradient(torch.empty(0, 3), torch.empty(0, 4)), torch.zeros(3, 4))
    assert ops.product(torch.empty(0, 5), ops.pack(torch.randn(7, 5))).shape == (0, 7)


def test_a_row_does_not_depend_on_the_others(one_thread: None):
    x, weight = torch.randn(150, 700), ops.pack(torch.randn(1000, 700))
    alone = ops.product(x, weight)
    torch.set_num_threads(2)
    assert torch.equal(ops.product(x, weight), alone)
    for rows in (slice(0, 1), slice(5, 8), slice(60, 100), slice(149, 150)):
        assert torch.equal(ops.product(x[rows], weight), alone[rows])


def test_product_refuses_other_shapes_and_types():
    weight = ops.pack(torch.randn(7, 5))
    with pytest.raises(AssertionError):
        ops.product(torch.randn(2, 6), weight)
    with pytest.raises(AssertionError):
        ops.product(torch.randn(2, 5, dtype=torch.float64), weight)


# --- element by element -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 16), (5, 576), (3, 4, 64)])
def test_rms_norm_and_its_gradient(shape: tuple[int, ...]):
    x, weight, dy = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape)
    wide = x.double().requires_grad_()
    expected = torch.nn.functional.rms_norm(wide, (shape[-1],), weight.double(), 1e-5)
    expected.backward(dy.double())
    y, inverse_rms = ops.rms_norm(x, weight, 1e-5)
    close(y, expected.detach())
    assert wide.grad is not None
    close(ops.rms_norm_backward(dy, x, weight, inverse_rms), wide.grad)


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_swiglu_and_its_gradient(size: float):
    gate_up, dy = size * torch.randn(7, 96), torch.randn(7, 48)
    wide = gate_up.double().requires_grad_()
    gate, up = wide.chunk(2, dim=-1)
    expected = torch.nn.functional.silu(gate) * up
    expected.backward(dy.double())
    close(ops.swiglu(gate_up), expected.detach())
    assert wide.grad is not None
    close(ops.swiglu_backward(dy, gate_up), wide.grad)


def test_swiglu_where_the_exponential_is_out_of_range():
    gate_up = torch.cat((torch.full((1, 16), -1000.0), torch.ones(1, 16)), dim=1)
    assert ops.swiglu(gate_up).abs().max() < 1e-30
    gate_up[:, :16] = 1000.0
    assert torch.equal(ops.swiglu(gate_up), torch.full((1, 16), 1000.0))


def test_rotation_there_and_back():
    heads = torch.randn(5, 7, 64)
    x = heads[:, 1:4]  # of a longer row
    angles = torch.randn(5, 1, 32)
    cos, sin = angles.cos(), angles.sin()
    low, high = x.double().chunk(2, dim=-1)
    turned = ops.rotate(x, cos, sin, back=False)
    close(turned, torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1))
    close(ops.rotate(turned, cos, sin, back=True), x.double())


@pytest.mark.parametrize("width", [1, 15, 16, 100, 4097])
def test_log_sum_exp_and_softmax(width: int):
    x, factor = 20 * torch.randn(6, width), torch.randn(6)
    lse = ops.log_sum_exp(x)
    close(lse, torch.logsumexp(x.double(), dim=-1))
    expected = torch.softmax(x.double(), dim=-1) * factor[:, None]
    ops.scaled_exp_(x, lse, factor)
    close(x, expected, 1e-5)  # a difference of numbers of about 50 has lost that much


def test_what_is_not_a_number_stays_so():
    bad = float("nan")
    x = torch.randn(2, 32)
    x[1, 3] = bad
    assert ops.log_sum_exp(x).isnan().tolist() == [False, True]
    assert ops.rms_norm(x, torch.ones(32), 1e-5)[0].isnan().any(1).tolist() == [False, True]
    assert ops.swiglu(x).isnan().any(1).tolist() == [False, True]
    assert ops.product(x, ops.pack(torch.randn(5, 32))).isnan().any(1).tolist() == [False, True]


# --- attention of whole sequences ---------------------------------------------------------------

HEADS, GROUPS = 6, 2


def sequences(split: bool) -> tuple[ops.SegmentTable, int]:
    """A beginning with two continuations, one of which is continued; and, without `split`, enough others that a thread
    has several tasks."""
    rows = [range(37), range(37, 42), range(42, 112), range(112, 113), range(113, 243)]
    before = [[], [rows[0]], [rows[0]], [rows[0], rows[2]], []]
    end = 243
    for length in () if split else (1, 2, 3, 64, 65):
        rows.append(range(end, end + length))
        before.append([])
        end += length
    return ops.SegmentTable(list(zip(rows, before, strict=True))), end


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("width", [16, 64])
def test_attention_of_sequences_and_its_gradients(width: int, split: bool, threads: int, one_thread: None):
    torch.set_num_threads(threads)
    table, tokens = sequences(split)
    scale = width**-0.5
    heads = torch.randn(tokens, HEADS + 2 * GROUPS, width)
    q, k, v = heads.split((HEADS, GROUPS, GROUPS), dim=1)  # parts of longer rows
    d_out = torch.randn(tokens, HEADS, width)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    parts: list[Tensor] = []
    for start, count, first, keys in table.lines:
        rows = torch.from_numpy(table.keys[first : first + keys])
        mask = torch.ones(count, keys, dtype=torch.bool).tril(keys - count)
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(
                wide[0][start : start + count].transpose(0, 1),
                *(x[rows].transpose(0, 1) for x in wide[1:]),
                attn_mask=mask,
                scale=scale,
                enable_gqa=True,
            ).transpose(0, 1)
        )
    expected = torch.cat(parts)
    expected.backward(d_out.double())
    out, lse = ops.attention(q, k, v, table, scale)
    close(out, expected.detach())
    grads = ops.attention_backward(d_out, q, k, v, out, lse, table, scale)
    for grad, x in zip(grads, wide, strict=True):
        assert x.grad is not None
        close(grad, x.grad, 5e-6)
    again = ops.attention_backward(d_out, q, k, v, *ops.attention(q, k, v, table, scale), table, scale)
    assert all(map(torch.equal, grads, again))


def test_log_sum_exp_loses_none_of_many_small_terms():
    x = torch.full((1, 50_000), -17.0)
    x[0, 0] = 0
    close(ops.log_sum_exp(x), torch.logsumexp(x.double(), dim=-1), 1e-7)
