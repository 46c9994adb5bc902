"""Checks of the arguments of the SSA functions."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any

import torch
from torch import Tensor

# query, key, value, n, b, mask, bias, dropout_p, is_causal, scale
Prepared = tuple[
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor | None,
    Tensor | None,
    float,
    bool,
    float,
]


def prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n: float | Tensor,
    b: float | Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Prepared:
    """Check the arguments of an attention; return them without defaults."""
    for part, name in ((query, "query"), (key, "key"), (value, "value")):
        check_floating(part, name)
    query, key, value = _autocast(query, key, value)
    query, key, value = _check_attention(query, key, value, enable_gqa)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"'dropout_p' must be in [0, 1]. Got {dropout_p!r} instead.")
    heads = query.shape[-3] if query.dim() > 2 else 1
    dtype = _compute_dtype(query)
    n = _per_head(n, "n", heads, query.device, dtype)
    b = _per_head(b, "b", heads, query.device, dtype)
    if isinstance(scale, Tensor) and scale.requires_grad:
        raise TypeError(
            "'scale' must be a number: a tensor that requires gradients would get "
            "none. Multiply 'query' by it."
        )
    scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else float(scale)
    shape = (*query.shape[:-1], key.shape[-2])
    if mask is not None:
        check_mask(mask, "attn_mask", shape)
        mask = _as_operand(mask, dtype)
    if bias is not None:
        check_floating(bias, "score_bias")
        check_mask(bias, "score_bias", shape)
        bias = _as_operand(bias, dtype)
    return query, key, value, n, b, mask, bias, dropout_p, is_causal, scale


def _autocast(*tensors: Tensor) -> Iterator[Tensor]:
    """Cast as PyTorch's attention is cast under autocast."""
    for tensor in tensors:
        device = tensor.device.type
        cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(
            device
        )
        if cast and tensor.dtype != torch.float64:
            tensor = tensor.to(torch.get_autocast_dtype(device))
        yield tensor


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Keep the precision that the caller chose; devices such as meta know no other."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def check_floating(tensor: Tensor, name: str) -> None:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"'{name}' must be a floating tensor. Got {got} instead.")


def check_mask(mask: Tensor, name: str, shape: tuple[int, ...]) -> None:
    if not isinstance(mask, Tensor) or not (
        mask.dtype == torch.bool or mask.is_floating_point()
    ):
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"'{name}' must be a boolean tensor (True keeps) or a floating one (added "
            f"after the transform). Got {got} instead."
        )
    fits = mask.dim() <= len(shape) and all(
        m in (1, s) for m, s in zip(mask.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"'{name}' of shape {tuple(mask.shape)} does not broadcast to the scores' "
            f"shape {tuple(shape)}."
        )


def _as_operand(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask with a last dimension and no more precision than the scores."""
    mask = mask.reshape(mask.shape or (1,))
    return mask.to(dtype) if mask.dtype == torch.float64 else mask


def _check_attention(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Check query, key and value and broadcast their leading dimensions."""
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            "'query', 'key' and 'value' must have one dtype. Got "
            f"{query.dtype}, {key.dtype} and {value.dtype} instead."
        )
    if query.dim() < 2 or not query.dim() == key.dim() == value.dim():
        raise ValueError(
            "'query', 'key' and 'value' must have the same number of dimensions, at "
            f"least 2. Got {_shapes(query, key, value)}."
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            "'query' and 'key' must agree in the last dimension, 'key' and 'value' in "
            f"the last but one. Got {_shapes(query, key, value)}."
        )
    fixed = 3 if enable_gqa else 2
    if enable_gqa and (
        query.dim() < 3
        or key.shape[-3] != value.shape[-3]
        or key.shape[-3] == 0
        or query.shape[-3] % key.shape[-3]
    ):
        raise ValueError(
            "With 'enable_gqa', 'key' and 'value' must have the same number of heads, "
            f"and it must divide that of 'query'. Got {_shapes(query, key, value)}."
        )
    parts = (query, key, value)
    leads = [part.shape[:-fixed] for part in parts]
    if leads[0] == leads[1] == leads[2]:
        return parts
    try:
        lead = torch.broadcast_shapes(*leads)
    except RuntimeError as error:
        raise ValueError(
            "The leading dimensions of 'query', 'key' and 'value' do not broadcast. "
            f"Got {_shapes(*parts)}. For fewer key than query heads pass "
            "enable_gqa=True."
        ) from error
    query, key, value = (part.expand(*lead, *part.shape[-fixed:]) for part in parts)
    return query, key, value


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    return f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"


def _as_parameter(
    parameter: float | Tensor, name: str, device: torch.device, dtype: torch.dtype
) -> Tensor:
    if isinstance(parameter, Tensor):
        if parameter.is_complex() or parameter.dtype == torch.bool:
            raise TypeError(f"'{name}' must be real. Got {parameter.dtype}.")
        return parameter.to(device=device, dtype=dtype)
    if not isinstance(parameter, Real) or isinstance(parameter, bool):
        raise TypeError(
            f"'{name}' must be a number or a tensor. Got {type(parameter).__name__}."
        )
    # A b that rounds to 0 would not scale but erase the scores.
    range_ = torch.finfo(dtype)
    least, rule = (1, ">= 1") if name == "n" else (range_.tiny, "> 0")
    if not least <= parameter <= range_.max:
        raise ValueError(
            f"'{name}' must be finite and {rule} as {dtype}. Got {parameter!r} instead."
        )
    return torch.tensor(float(parameter), device=device, dtype=dtype)


def _per_head(
    parameter: float | Tensor,
    name: str,
    heads: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Return the parameter as a tensor of shape (heads,)."""
    tensor = _as_parameter(parameter, name, device, dtype)
    if tensor.dim() > 1 or (tensor.dim() == 1 and tensor.shape[0] not in (1, heads)):
        raise ValueError(
            f"'{name}' must be a scalar or have one value a head, shape ({heads},). "
            f"Got shape {tuple(tensor.shape)}."
        )
    return tensor.expand(heads)


def score_parameters(
    scores: Tensor, n: float | Tensor, b: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Return n and b so that they broadcast against scores (..., H, L, S)."""
    dtype = _compute_dtype(scores)
    result = []
    for name, parameter in (("n", n), ("b", b)):
        tensor = _as_parameter(parameter, name, scores.device, dtype)
        if tensor.dim() > 0:
            heads = scores.shape[-3] if scores.dim() > 2 else 1
            tensor = _per_head(tensor, name, heads, scores.device, dtype)
            if scores.dim() > 2:
                tensor = tensor.view(-1, 1, 1)
        result.append(tensor)
    return result[0], result[1]
