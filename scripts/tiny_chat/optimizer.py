"""Muon for the matrices inside the layers, AdamW for the embedding and the norms, one schedule for both.

Muon (Jordan et al. 2024) replaces the momentum of a matrix by the nearest matrix with orthonormal rows. This one
differs from `torch.optim.Muon`: Newton-Schulz runs in fp32, since bf16 is slow on CPUs without bf16 units, and
matrices of equal shape share one batched product.

Shapes: M matrices, R ≤ C their sides.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn


class Optimizer:
    def __init__(
        self,
        network: nn.Module,
        steps: int,
        *,
        matrix_lr: float = 0.01,
        other_lr: float = 0.003,
        weight_decay: float = 0.1,  # of the matrices only
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        warmup_steps: int = 50,
        decay_share: float = 0.4,  # of the steps, at the end
    ) -> None:
        self.steps, self.warmup_steps, self.decay_steps = steps, warmup_steps, decay_share * steps
        self.matrix_lr, self.other_lr = matrix_lr, other_lr
        self.weight_decay, self.momentum = weight_decay, momentum
        groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        others: list[nn.Parameter] = []
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2 and "embed_tokens" not in name:
                groups[wide(parameter).shape].append(parameter)
            else:
                others.append(parameter)
        self.groups = list(groups.values())
        self.momenta = [torch.stack([torch.zeros_like(wide(p)) for p in group]) for group in self.groups]
        self.adam = torch.optim.AdamW(others, other_lr, betas, weight_decay=0.0, fused=True)
        self.steps_done = 0

    def lr_factor(self) -> float:
        """Linear warm-up, constant, linear decay to zero."""
        warm_up = (self.steps_done + 1) / max(self.warmup_steps, 1)
        decay = (self.steps - self.steps_done) / max(self.decay_steps, 1)
        return max(0.0, min(warm_up, 1.0, decay))

    @torch.no_grad()
    def step(self) -> None:
        """One update with the gradients in `.grad`, which it then clears."""
        factor = self.lr_factor()
        lr = self.matrix_lr * factor
        for group, momentum_MRC in zip(self.groups, self.momenta, strict=True):
            grad_MRC = torch.stack([wide(gradient(p)) for p in group])
            momentum_MRC.lerp_(grad_MRC, 1 - self.momentum)
            update_MRC = orthogonalize(grad_MRC.lerp_(momentum_MRC, self.momentum))
            # 0.2·sqrt(longer side) gives an update the size of AdamW's, so that both take similar learning rates.
            update_MRC *= 0.2 * update_MRC.shape[-1] ** 0.5
            for parameter, update_RC in zip(group, update_MRC, strict=True):
                wide(parameter).mul_(1 - lr * self.weight_decay).sub_(update_RC, alpha=lr)
                parameter.grad = None
        for options in self.adam.param_groups:
            options["lr"] = self.other_lr * factor
        self.adam.step()
        self.adam.zero_grad()
        self.steps_done += 1

    def state_dict(self) -> dict[str, Any]:
        return {"momenta": self.momenta, "adam": self.adam.state_dict(), "steps_done": self.steps_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for momentum, saved in zip(self.momenta, state["momenta"], strict=True):
            momentum.copy_(saved)
        self.adam.load_state_dict(state["adam"])
        self.steps_done = state["steps_done"]


def orthogonalize(x_MRC: Tensor) -> Tensor:
    """Brings all singular values near 1: five steps of the quintic Newton-Schulz iteration with Muon's factors."""
    x_MRC = x_MRC / (torch.linalg.matrix_norm(x_MRC, keepdim=True) + 1e-7)
    for _ in range(5):
        gram_MRR = x_MRC @ x_MRC.mT
        poly_MRR = torch.baddbmm(gram_MRR, gram_MRR, gram_MRR, beta=-4.7750, alpha=2.0315)
        x_MRC = torch.baddbmm(x_MRC, poly_MRR, x_MRC, beta=3.4445)
    return x_MRC


def wide(matrix: Tensor) -> Tensor:
    """A view with the shorter side first: its Gram matrix is the small one."""
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


def gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise RuntimeError("a parameter has no gradient; call backward() before step()")
    return parameter.grad
