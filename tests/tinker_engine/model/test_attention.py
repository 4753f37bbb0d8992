"""Partial attention and its merging, against attention written out."""

import pytest
import torch
from torch import Tensor

from tinker_engine.model.attention import causal_part, full_part, masked_part, merge


def written_out(q_THE: Tensor, k_KGE: Tensor, v_KGE: Tensor, visible_TK: Tensor) -> Tensor:
    repeat = q_THE.shape[1] // k_KGE.shape[1]
    k, v = k_KGE.repeat_interleave(repeat, 1), v_KGE.repeat_interleave(repeat, 1)
    scores = torch.einsum("the,khe->thk", q_THE, k) * q_THE.shape[-1] ** -0.5
    weights = scores.masked_fill(~visible_TK[:, None, :], -torch.inf).softmax(-1)
    return torch.einsum("thk,khe->the", weights, v)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_prefix_and_own_tokens_merge_to_the_whole(groups: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(19, 6, 8), torch.randn(19, groups, 8), torch.randn(19, groups, 8)
    scale = 8**-0.5
    own = causal_part(q[12:], k[12:], v[12:], 1, scale)
    before = full_part(q[12:], k[:12].transpose(0, 1), v[:12].transpose(0, 1), scale)
    visible = torch.ones(19, 19, dtype=torch.bool).tril()
    torch.testing.assert_close(merge(before, own)[0], written_out(q, k, v, visible)[12:])


def test_equal_segments_in_one_call_equal_each_alone() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(15, 4, 8), torch.randn(15, 2, 8), torch.randn(15, 2, 8)
    out, lse = causal_part(q, k, v, 3, 0.3)
    for i in range(3):
        rows = slice(5 * i, 5 * i + 5)
        alone = causal_part(q[rows], k[rows], v[rows], 1, 0.3)
        torch.testing.assert_close(out[rows], alone[0])
        torch.testing.assert_close(lse[rows], alone[1])


def test_masked_keys_do_not_count() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 8), torch.randn(3, 2, 10, 8), torch.randn(3, 2, 10, 8)
    lengths = [1, 7, 10]
    mask = torch.zeros(3, 10)
    for row, length in enumerate(lengths):
        mask[row, length:] = -torch.inf
    out, _ = masked_part(q, k, v, mask, 8**-0.5)
    for row, length in enumerate(lengths):
        keys, values = k[row, :, :length].transpose(0, 1), v[row, :, :length].transpose(0, 1)
        expected = written_out(q[row : row + 1], keys, values, torch.ones(1, length, dtype=torch.bool))
        torch.testing.assert_close(out[row : row + 1], expected)
