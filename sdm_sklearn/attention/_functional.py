"""Scaled Signed Averaging as functions of scores and of query, key and value."""

import math

import torch
from torch import Tensor

from sdm_sklearn.attention._blocked import blocked_forward
from sdm_sklearn.attention._checks import (
    check_floating,
    check_mask,
    prepare,
    score_parameters,
    without_autocast,
)
from sdm_sklearn.attention._tiles import MASKED_BELOW, default_tile, masked_rows

_BACKENDS = ("auto", "eager", "blocked", "flex")

# Up to this many scores, starting the tile operations costs more than they save.
_EAGER_BELOW = 2**15


def ssa_transform(scores: Tensor, n: float | Tensor, b: float | Tensor) -> Tensor:
    r"""Transform scores so that their softmax is Scaled Signed Averaging.

    :math:`t(s) = n\,\mathrm{sgn}(s)\ln(1 + b|s|)`, the logarithm of the SSA weight
    :math:`(1 + b|s|)^{\mathrm{sgn}(s)\,n}` ([1]_, Section 5). The derivative at 0 is
    its limit ``n b``, so that zero-initialised projections learn.

    Parameters
    ----------
    scores : Tensor of shape (..., H, L, S) or any shape
        Real scores. Half precision is computed in float32.
    n : float or Tensor of shape () or (H,)
        Exponent, at least 1.
    b : float or Tensor of shape () or (H,)
        Scale, above 0. Scores with ``b |s|`` beyond the largest number of the
        dtype saturate there.

    Returns
    -------
    Tensor
        Of the shape and dtype of ``scores``.

    Raises
    ------
    ValueError
        If a number ``n`` is below 1, a number ``b`` is not positive, or one of them
        has a shape that fits neither. Values of tensors are not read; keep them in
        range with :class:`SSAParameters`.
    TypeError
        If ``scores`` is not a floating tensor, or ``n`` or ``b`` is not real.

    References
    ----------
    .. [1] "Scaled Signed Averaging", arXiv:2508.14685.

    Examples
    --------
    >>> import torch
    >>> from sdm_sklearn.attention import ssa_transform
    >>> ssa_transform(torch.tensor([-3.0, 0.0, 3.0]), n=2.0, b=1.0).exp()
    tensor([ 0.0625,  1.0000, 16.0000])
    """
    check_floating(scores, "scores")
    n, b = score_parameters(scores, n, b)
    return _transform(scores.to(n.dtype), n, b).to(scores.dtype)


def ssa_weights(
    scores: Tensor,
    n: float | Tensor,
    b: float | Tensor,
    *,
    mask: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    r"""Scaled Signed Averaging of scores, a replacement for their softmax.

    :math:`w_j = (1 + b|s_j|)^{\mathrm{sgn}(s_j)\,n} \big/
    \sum_k (1 + b|s_k|)^{\mathrm{sgn}(s_k)\,n}` ([1]_, Section 5).

    Parameters
    ----------
    scores : Tensor of shape (..., H, L, S) or any shape
        Unlike for softmax, a constant added to the scores changes the result.
    n, b : float or Tensor of shape () or (H,)
        Exponent (at least 1) and scale (above 0).
    mask : Tensor broadcastable to ``scores``, or None
        Boolean, where True keeps the entry, or floating, which is added after the
        transform; values of -1e4 or less remove the entry as ``-inf`` does.
    dim : int, default=-1
        Dimension along which the weights sum to 1.

    Returns
    -------
    Tensor
        Weights of the shape and dtype of ``scores``. Slices in which nothing is kept
        are 0, and so are their gradients.

    Raises
    ------
    ValueError, TypeError
        As :func:`ssa_transform`, and for a mask that is neither boolean nor
        floating or does not broadcast.

    References
    ----------
    .. [1] "Scaled Signed Averaging", arXiv:2508.14685.

    Examples
    --------
    >>> import torch
    >>> from sdm_sklearn.attention import ssa_weights
    >>> ssa_weights(torch.tensor([3.0, 0.0, 0.0]), n=1.0, b=1.0)
    tensor([0.6667, 0.1667, 0.1667])
    """
    check_floating(scores, "scores")
    n, b = score_parameters(scores, n, b)
    if mask is not None:
        check_mask(mask, "mask", scores.shape)
    return _masked_weights(scores.to(n.dtype), n, b, mask, dim).to(scores.dtype)


def ssa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n: float | Tensor,
    b: float | Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    score_bias: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Attention whose weights are the Scaled Signed Averaging of the scores.

    It takes the arguments of
    :func:`torch.nn.functional.scaled_dot_product_attention` in their order and
    meaning, with ``n`` and ``b`` after ``value``:
    ``ssa_weights(scale * query @ key.mT + score_bias, n, b, mask=attn_mask) @ value``.

    Parameters
    ----------
    query : Tensor of shape (..., H, L, E)
        Queries. With two dimensions there are no heads.
    key, value : Tensor of shape (..., H, S, E), (..., H, S, Ev)
        Keys and values. Leading dimensions broadcast.
    n, b : float or Tensor of shape () or (H,)
        Exponent (at least 1) and scale (above 0), for all heads or for each.
    attn_mask : Tensor broadcastable to (..., H, L, S), or None
        Boolean, where True takes part, or floating, which is added to the
        *transformed* scores; values of -1e4 or less remove the key as ``-inf`` does.
    dropout_p : float, default=0.0
        Probability with which a weight is dropped. As in PyTorch's function it acts
        whenever it is above 0; pass 0 in evaluation.
    is_causal : bool, default=False
        Query i sees the keys up to i, aligned at the top left. May be combined with
        ``attn_mask``.
    scale : float or None, default=None
        Factor of the scores, ``1 / sqrt(E)`` for None.
    enable_gqa : bool, default=False
        Allow fewer key than query heads; query head h uses key head
        ``h // (H // Hk)``.
    score_bias : Tensor broadcastable to (..., H, L, S), or None
        Added to the scores *before* the transform (ALiBi, relative positions). Not
        for masks: a large negative score keeps some SSA weight.
    backend : {"auto", "eager", "blocked", "flex"}, default="auto"
        - "eager" stores all ``L x S`` scores. It is the fastest for few scores and
          the only one with second derivatives, forward-mode differentiation and
          ``torch.func``.
        - "blocked" needs memory linear in L and S and runs everywhere.
        - "flex" compiles ``torch.nn.attention.flex_attention``: CUDA, or CPU
          without gradients; no dropout, no float64 on CPU.
        - "auto" is "eager" below 32,768 scores and within ``torch.func`` or
          forward-mode differentiation, else "blocked".

    Returns
    -------
    Tensor of shape (..., H, L, Ev)
        In the dtype of ``query``. Queries that see no key give 0, and so do their
        gradients; that is read from the mask, so NaN inputs stay visible.

    Raises
    ------
    ValueError
        For shapes that do not fit, ``n`` or ``b`` out of range, ``dropout_p`` outside
        [0, 1], an unknown ``backend``, or what "blocked" or "flex" cannot do.
    TypeError
        If query, key and value are not floating tensors of one dtype, ``n`` or ``b``
        is not real, or ``scale`` requires gradients.
    RuntimeError
        When a second derivative is asked of the "blocked" backend.

    Notes
    -----
    As in PyTorch's function, NaN in a masked key or value may still reach the queries:
    overwrite such padding.

    References
    ----------
    .. [1] "Scaled Signed Averaging", arXiv:2508.14685, Section 5.

    Examples
    --------
    >>> import torch
    >>> from sdm_sklearn.attention import ssa_attention
    >>> query, key, value = torch.randn(3, 2, 8, 5, 16).unbind()
    >>> ssa_attention(query, key, value, n=1.5, b=0.8, is_causal=True).shape
    torch.Size([2, 8, 5, 16])
    """
    if backend not in _BACKENDS:
        raise ValueError(f"'backend' must be one of {_BACKENDS}. Got {backend!r}.")
    prepared = prepare(
        query,
        key,
        value,
        n,
        b,
        attn_mask,
        score_bias,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
    )
    backend = _choose_backend(backend, *prepared[:3])
    if backend == "eager":
        return _eager(*prepared)[0]
    if backend == "flex":
        from sdm_sklearn.attention._flex import flex_ssa

        return flex_ssa(*prepared)
    return _blocked(*prepared)


def attention_and_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n: float | Tensor,
    b: float | Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    score_bias: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Do as :func:`ssa_attention`, and return the (..., H, L, S) weights too.

    The weights are those that were used, after dropout. ``softcap`` bounds the scores
    to ``softcap * tanh(s / softcap)`` before the transform.
    """
    prepared = prepare(
        query,
        key,
        value,
        n,
        b,
        attn_mask,
        score_bias,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
    )
    return _eager(*prepared, softcap)


def _transform(scores: Tensor, n: Tensor, b: Tensor) -> Tensor:
    # |s| as s * sign with a constant sign: autograd's own |s| has derivative 0 at 0.
    sign = torch.copysign(torch.ones_like(scores), scores.detach())
    scaled = b * (scores * sign)
    overflowed = scaled.detach().isinf() & scores.detach().isfinite()
    scaled = scaled.masked_fill(overflowed, torch.finfo(scores.dtype).max)
    return n * sign * torch.log1p(scaled)


def _masked_weights(
    scores: Tensor, n: Tensor, b: Tensor, mask: Tensor | None, dim: int
) -> Tensor:
    """Weights of the kept scores; 0, also as gradient, where none is kept."""
    if mask is None:
        return torch.softmax(_transform(scores, n, b), dim)
    mask = mask.expand(scores.shape)
    removed = ~mask if mask.dtype == torch.bool else mask <= MASKED_BELOW
    dead = removed.all(dim, keepdim=True)
    transformed = _transform(scores.masked_fill(dead, 0), n, b)
    if mask.is_floating_point():
        transformed = transformed + mask.masked_fill(removed, 0)
    transformed = transformed.masked_fill(removed, -math.inf).masked_fill(dead, 0)
    return torch.softmax(transformed, dim).masked_fill(dead, 0)


def _grouped_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Multiply (..., H, L, M) by (..., Hk, M, N) without repeating the right side."""
    if left.dim() == 2 or left.shape[-3] == right.shape[-3]:
        return left @ right
    grouped = left.unflatten(-3, (right.shape[-3], -1)).flatten(-3, -2)
    return (grouped @ right).unflatten(-2, (-1, left.shape[-2])).flatten(-4, -3)


def _eager(
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
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute output and weights by plain autograd."""
    dead = None
    if mask is not None:
        # 0 * NaN is NaN: neither queries nor values may reach rows that see no key.
        dead = masked_rows(mask, is_causal, query.shape[-2])
        query = query.masked_fill(dead, 0)
    with without_autocast(query.device):
        scores = _grouped_matmul(query.to(n.dtype), key.to(n.dtype).mT) * scale
        if bias is not None:
            scores = scores + bias
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if query.dim() > 2:
            n, b = n.view(-1, 1, 1), b.view(-1, 1, 1)
        if is_causal:
            mask = _with_causal(mask, scores)
        weights = _masked_weights(scores, n, b, mask, -1)
        if dropout_p > 0:
            weights = torch.dropout(weights, dropout_p, True)
        mixed = _grouped_matmul(weights, value.to(n.dtype))
        if dead is not None:
            mixed = mixed.masked_fill(dead, 0)
    return mixed.to(query.dtype), weights.to(query.dtype)


def _with_causal(mask: Tensor | None, scores: Tensor) -> Tensor:
    ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    causal = ones.tril()
    if mask is None:
        return causal
    if mask.dtype == torch.bool:
        return mask & causal
    return mask.masked_fill(~causal, -math.inf)


def _blocked(
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
    shape, lead = query.shape[:-1], query.shape[:-3]
    tile = default_tile(query.device.type)
    seed = torch.randint(2**62, (), dtype=torch.int64) if dropout_p > 0 else None
    query, key, value = (_four_dims(part) for part in (query, key, value))
    mask = None if mask is None else _four_dims(mask, lead)
    bias = None if bias is None else _four_dims(bias, lead)
    output, _ = blocked_forward(
        query, key, value, n, b, mask, bias, seed, scale, dropout_p, is_causal, tile
    )
    return output.reshape(*shape, output.shape[-1]).to(query.dtype)


def _four_dims(part: Tensor, lead: torch.Size | None = None) -> Tensor:
    """Bring a tensor to four dimensions; ``lead`` are those in front of the heads."""
    while part.dim() < 4:
        part = part.unsqueeze(0)
    if lead is not None and len(lead) > 1 and part.shape[:-3].numel() > 1:
        part = part.expand(*lead, *part.shape[-3:])
    return part.flatten(0, -4)


def _is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work."""
    # Operators of torch.library have no rules for them; tangents would be lost.
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _choose_backend(backend: str, query: Tensor, key: Tensor, value: Tensor) -> str:
    if backend == "eager":
        return backend
    if backend != "flex" and _is_transformed():
        if backend == "blocked":
            raise ValueError(
                "backend='blocked' supports neither forward-mode differentiation nor "
                "torch.func (grad, jvp, vmap and so on). Use backend='eager' or 'auto'."
            )
        return "eager"
    if backend != "flex" and torch.compiler.is_compiling():
        # No branch on sizes: it would become a guard and split dynamic lengths.
        return "blocked"
    if 0 in (*query.shape, *key.shape, *value.shape):
        return "eager"
    if backend == "flex":
        return backend
    n_scores = math.prod(query.shape[:-1]) * key.shape[-2]
    return "eager" if backend == "auto" and n_scores < _EAGER_BELOW else "blocked"
