import pytest
import torch

from tinker_engine.errors import InputError, NonFiniteError
from tinker_engine.training.optimizer import AdamW
from tinker_engine.training.types import AdamParams


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_steps_equal_torchs_adamw(weight_decay: float, clip: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(50, generator=generator, dtype=torch.float64)
    theirs = torch.nn.Parameter(weights.clone())
    params = AdamParams(3e-3, 0.9, 0.95, 1e-8, weight_decay, clip)
    reference = torch.optim.AdamW([theirs], lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay)
    own = AdamW(weights)
    for _ in range(7):
        grad = torch.randn(50, generator=generator, dtype=torch.float64)
        before = weights.clone()
        metrics = own.step(weights, grad, params)
        theirs.grad = grad.clone()
        norm = torch.nn.utils.clip_grad_norm_([theirs], clip or 1e9)
        reference.step()
        torch.testing.assert_close(weights, theirs.detach())
        assert metrics["grad_norm:mean"] == pytest.approx(norm.item())
        assert metrics["update_norm:mean"] == pytest.approx((weights - before).norm().item())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e25])  # the last one's square is infinite
def test_a_non_finite_gradient_is_refused_and_nothing_changes(bad: float) -> None:
    weights, optimizer = torch.ones(4), AdamW(torch.ones(4))
    optimizer.step(weights, torch.full((4,), 0.1), AdamParams())
    state = [weights.clone(), optimizer.first.clone(), optimizer.second.clone()]
    with pytest.raises(NonFiniteError, match="refused"):
        optimizer.step(weights, torch.tensor([0.0, bad, 0.0, 0.0]), AdamParams())
    assert all(map(torch.equal, state, [weights, optimizer.first, optimizer.second]))
    assert optimizer.steps == 1


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (AdamParams(learning_rate=-1.0), "learning_rate"),
        (AdamParams(learning_rate=float("nan")), "learning_rate"),
        (AdamParams(beta1=1.0), "beta1"),
        (AdamParams(beta2=1.5), "beta2"),
        (AdamParams(eps=0.0), "eps"),
        (AdamParams(weight_decay=-0.1), "weight_decay"),
        (AdamParams(grad_clip_norm=-1.0), "grad_clip_norm"),
    ],
)
def test_bad_parameters_are_named(params: AdamParams, field: str) -> None:
    weights = torch.ones(3)
    with pytest.raises(InputError) as error:
        AdamW(weights).step(weights, torch.ones(3), params)
    assert error.value.field == f"adam_params.{field}"
    assert torch.equal(weights, torch.ones(3))
