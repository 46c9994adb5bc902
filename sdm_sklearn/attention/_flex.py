"""SSA attention through PyTorch's FlexAttention, compiled on first use."""

from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex_ssa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n: Tensor,
    b: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """Run the compiled kernel; see :func:`sdm_sklearn.attention.ssa_attention`.

    Raises
    ------
    ValueError
        For what FlexAttention cannot do.
    """
    tensors = (query, key, value, n, b)
    on_cpu = query.device.type == "cpu"
    refused = {
        "dropout": dropout_p > 0,
        "attn_mask or score_bias": mask is not None or bias is not None,
        "inputs without four dimensions": query.dim() != 4,
        "float64": query.dtype == torch.float64,
        "gradients on CPU": on_cpu
        and torch.is_grad_enabled()
        and any(t.requires_grad for t in tensors),
    }
    reasons = [name for name, refuse in refused.items() if refuse]
    if reasons:
        raise ValueError(
            f"backend='flex' does not support {', '.join(reasons)}. Use backend='auto'."
        )
    n, b = n.contiguous(), b.contiguous()

    def transform(score, batch, head, row, column):
        size = torch.log1p(b[head] * score.abs()) * n[head]
        transformed = torch.where(score < 0, -size, size)
        if is_causal:
            transformed = torch.where(row >= column, transformed, -float("inf"))
        return transformed

    return _compiled()(
        query,
        key,
        value,
        score_mod=transform,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
