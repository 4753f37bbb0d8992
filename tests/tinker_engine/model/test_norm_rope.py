import torch

from tinker_engine.model.norm import rms_norm
from tinker_engine.model.rope import RopeTable, rotate
from tinker_engine.model.spec import RopeSpec


def test_rms_norm_equals_torchs_in_value_and_gradient() -> None:
    x = torch.randn(5, 3, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(16, dtype=torch.float64)
    own = rms_norm(x, weight, 1e-3)
    expected = torch.nn.functional.rms_norm(x, (16,), weight, 1e-3)
    torch.testing.assert_close(own, expected)
    scale = torch.randn_like(own)
    (grad,), (wanted,) = (torch.autograd.grad(y, x, scale) for y in (own, expected))
    torch.testing.assert_close(grad, wanted)


def test_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    table = RopeTable(RopeSpec(theta=100.0), 8, torch.device("cpu"), torch.float64)
    q, k = torch.randn(1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 8, dtype=torch.float64)

    def score(at: int, other: int) -> torch.Tensor:
        (cos_q, sin_q), (cos_k, sin_k) = (table.at(torch.tensor([p]), 1000) for p in (at, other))
        return (rotate(q, cos_q, sin_q) * rotate(k, cos_k, sin_k)).sum()

    torch.testing.assert_close(score(5, 5), (q * k).sum())
    torch.testing.assert_close(score(907, 900), score(10, 3), atol=1e-4, rtol=1e-4)


def test_rotation_gradient_equals_finite_differences() -> None:
    table = RopeTable(RopeSpec(), 8, torch.device("cpu"), torch.float64)
    cos, sin = table.at(torch.tensor([3, 1, 400]), 401)
    x = torch.randn(3, 2, 8, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), (x,))
