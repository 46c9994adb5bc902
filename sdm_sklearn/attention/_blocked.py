"""Row-blocked SSA attention with memory linear in the sequence length.

The forward and the backward pass walk over tiles of full score rows, so that no
``L x S`` matrix is ever stored; the backward pass computes the tiles again. Both are
opaque operators (:func:`torch.library.custom_op`): ``torch.compile`` would unroll the
loops.

With ``x = b s`` a tile's transformed scores are ``n sgn(x) ln(1 + |x|)``, taken to
base 2: on CPUs without AVX-512 ``log2`` and ``exp2`` are much cheaper than ``log1p``
and ``exp``, and ``1 + |x|`` is what the derivative divides by. ``where``, ``pow`` and
``masked_fill`` take as long as a matrix product and do not occur in the loops.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sdm_sklearn.attention._checks import without_autocast
from sdm_sklearn.attention._tiles import LN2, Chunk, Scores


class _Dropout:
    """Inverted dropout masks that the backward pass can draw again."""

    def __init__(self, p: float, seed: Tensor | None, device: torch.device):
        self.p = p
        if seed is not None:
            self.seed, self.generator = int(seed), torch.Generator(device)

    def mask(self, like: Tensor, tile: int) -> Tensor | None:
        if self.p == 0:
            return None
        if self.p == 1:
            return torch.zeros_like(like)
        self.generator.manual_seed(self.seed + tile)
        keep = torch.empty_like(like).bernoulli_(1 - self.p, generator=self.generator)
        return keep.mul_(1 / (1 - self.p))


def _without_autocast(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Keep autocast, which reaches into operators, from lowering the precision."""

    @functools.wraps(operator)
    def run(*args: Any, **kwargs: Any) -> Any:
        with without_autocast(args[0].device):
            return operator(*args, **kwargs)

    return run


@torch.library.custom_op("sdm_sklearn::ssa_blocked", mutates_args=())
@_without_autocast
def blocked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n: Tensor,
    b: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout_p: float,
    is_causal: bool,
    tile: int,
) -> tuple[Tensor, Tensor]:
    """Compute SSA attention tile by tile.

    Parameters
    ----------
    query : Tensor of shape (B, H, L, E)
    key, value : Tensor of shape (B, Hk, S, E), (B, Hk, S, Ev)
        Hk divides H; query head h uses key head ``h // (H // Hk)``.
    n, b : Tensor of shape (H,)
        In the dtype of the computation, float32 or float64.
    mask, bias : Tensor of four dimensions that broadcasts to (B, H, L, S), or None
    seed : Tensor of shape (), int64, or None
        Where the dropout masks start; needed if ``dropout_p`` is not 0.
    scale, dropout_p, is_causal
        As for :func:`sdm_sklearn.attention.ssa_attention`.
    tile : int
        Scores held at once.

    Returns
    -------
    output : Tensor of shape (B, H, L, Ev)
        In the dtype of ``n``: the backward pass subtracts <dO, O> from the gradients
        of the weights, and rounding it to half precision would spoil those of n and b.
    lse : Tensor of shape (B, H, L)
        log2 of each row's sum of weights, from which the backward pass normalises.
    """
    if 0 in (*query.shape[:3], key.shape[2]):
        output = n.new_zeros(*query.shape[:3], value.shape[-1])
        return output, n.new_zeros(query.shape[:3])
    scores = Scores(query, key, n, b, mask, bias, scale, is_causal, tile, n_buffers=2)
    tiling, dropout = scores.tiling, _Dropout(dropout_p, seed, query.device)
    small = scores.are_small()
    values = value.to(n.dtype).flatten(0, 1)
    output = n.new_empty(*query.shape[:3], value.shape[-1])
    flat_output = output.flatten(0, 1)
    total = n.new_empty(*flat_output.shape[:2], 1)
    top = None if small else torch.empty_like(total)
    count = 0
    for group in tiling.chunks():
        chunk_keys, chunk_values = scores.keys[group[0].keys], values[group[0].keys]
        for chunk in group:
            for rows, queries, mixed, sums in tiling.by_rows(
                scores.queries[chunk.queries],
                flat_output[chunk.queries],
                total[chunk.queries],
            ):
                weights, *_ = scores.transformed(
                    queries, tiling.seen(chunk_keys, rows), chunk, rows
                )
                if top is not None:
                    highest = weights.amax(-1, keepdim=True)
                    weights.sub_(highest)
                    top[chunk.queries, rows] = highest
                weights.exp2_()
                torch.sum(weights, -1, keepdim=True, out=sums)
                keep = dropout.mask(weights, count)
                count += 1
                if keep is not None:
                    weights.mul_(keep)
                torch.bmm(weights, tiling.seen(chunk_values, rows), out=mixed)
    flat_output.div_(total)
    lse = total.log2_() if top is None else total.log2_().add_(top)
    return scores.without_dead(output), lse.view(query.shape[:3])


@blocked_forward.register_fake
def _(query, key, value, n, b, mask, bias, seed, scale, dropout_p, is_causal, tile):
    output = n.new_empty(*query.shape[:3], value.shape[-1])
    return output, n.new_empty(query.shape[:3])


@torch.library.custom_op("sdm_sklearn::ssa_blocked_backward", mutates_args=())
@_without_autocast
def blocked_backward(
    grad: Tensor,
    output: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n: Tensor,
    b: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout_p: float,
    is_causal: bool,
    tile: int,
    mask_grad: bool,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of query, key, value, n, b, mask and bias.

    With weights P, output O and ``x = b s``: dt = P (dP - <dO, O>) and
    dx = n dt / (1 + |x|). The factors n, b and scale are applied to the small
    matrices after the products, and the gradient of b needs no pass over the scores:
    the sum of dx x over a query's keys is <dx k, b scale q>. Gradients that are not
    asked for (``mask_grad``, ``bias_grad`` False) come back empty.
    """
    grad_mask = n.new_zeros(mask.shape if mask is not None and mask_grad else 0)
    grad_bias = n.new_zeros(bias.shape if bias is not None and bias_grad else 0)
    if 0 in (*query.shape[:3], key.shape[2]):
        query, key, value, n, b = (
            part.new_zeros(part.shape) for part in (query, key, value, n, b)
        )
        return query, key, value, n, b, grad_mask, grad_bias
    scores = Scores(query, key, n, b, mask, bias, scale, is_causal, tile, n_buffers=4)
    tiling, dropout = scores.tiling, _Dropout(dropout_p, seed, query.device)
    values = value.to(n.dtype).flatten(0, 1)
    upstream = scores.without_dead(grad.to(n.dtype))
    mean = (upstream * output).sum(-1, keepdim=True).flatten(0, 1)
    upstream = upstream.flatten(0, 1)
    # Rows without keys get weights of 2 ** -1e30 = 0.
    base = scores.without_dead(-lse.unsqueeze(-1)).flatten(0, 1)
    grad_query = torch.empty_like(scores.queries)
    grad_key, grad_value = torch.zeros_like(scores.keys), torch.zeros_like(values)
    grad_n, grad_b = n.new_zeros(n.shape), n.new_zeros(n.shape)
    count = 0
    for group in tiling.chunks():
        chunk_keys, chunk_values, chunk_grad_key, chunk_grad_value = (
            part[group[0].keys] for part in (scores.keys, values, grad_key, grad_value)
        )
        for chunk in group:
            heads = chunk.heads
            n_entries = chunk.entries.stop - chunk.entries.start
            queries = scores.queries[chunk.queries]
            for rows, *parts in tiling.by_rows(
                queries,
                queries * n[heads].repeat(n_entries).view(-1, 1, 1),
                upstream[chunk.queries],
                mean[chunk.queries],
                base[chunk.queries],
                grad_query[chunk.queries],
            ):
                rows_queries, rows_n, rows_upstream, rows_mean, shift, target = parts
                rows_keys = tiling.seen(chunk_keys, rows)
                n_keys = rows_keys.shape[1]
                shape = (*rows_upstream.shape[:2], n_keys)
                one_plus, dt = scores.buffers(shape)[2:]
                log_weights, free, part = scores.transformed(
                    rows_queries, rows_keys, chunk, rows, shift, one_plus
                )
                weights = torch.exp2(log_weights, out=free)
                rows_values = tiling.seen(chunk_values, rows)
                torch.bmm(rows_upstream, rows_values.mT, out=dt)
                keep = dropout.mask(weights, count)
                count += 1
                used = weights
                if keep is not None:
                    dt.mul_(keep)
                    used = keep.mul_(weights)
                tiling.seen(chunk_grad_value, rows).baddbmm_(used.mT, rows_upstream)
                dt.sub_(rows_mean).mul_(weights)
                # n times the logarithm is log P plus what a row has in common (whose
                # share is 0, as dt sums to 0) less a floating mask.
                grad_n[heads] += _dot(chunk, dt, log_weights) * LN2
                if part is not None and scores.floating:
                    grad_n[heads] -= _dot(chunk, dt, part) * LN2
                    if mask_grad:
                        place = chunk.take(grad_mask, rows, n_keys)
                        place += chunk.by_head(dt).sum_to_size(place.shape)
                dx = dt.div_(one_plus)
                if bias is not None:
                    part = chunk.take(bias, rows, n_keys).to(n.dtype)
                    grad_b[heads] += n[heads] * _dot(chunk, dx, part)
                    if bias_grad:
                        place = chunk.take(grad_bias, rows, n_keys)
                        update = chunk.by_head(dx) * (n * b)[heads].view(-1, 1, 1)
                        place += update.sum_to_size(place.shape)
                torch.bmm(dx, rows_keys, out=target)
                tiling.seen(chunk_grad_key, rows).baddbmm_(dx.mT, rows_n)
    grad_b += _per_head_dot(grad_query, scores.queries, len(n)) * n / b
    grad_query = grad_query.view(query.shape).mul_((n * b * scale).view(-1, 1, 1))
    return (
        grad_query.to(query.dtype),
        grad_key.view(key.shape).to(key.dtype),
        grad_value.view(value.shape).to(value.dtype),
        grad_n / n,
        grad_b,
        grad_mask,
        grad_bias,
    )


def _dot(chunk: Chunk, tile: Tensor, other: Tensor) -> Tensor:
    """Sum tile * other per head; ``other`` is a tile or broadcasts to (B, H, R, K)."""
    n_heads = len(range(*chunk.heads.indices(chunk.heads.stop)))
    if other.shape[:2] == (1, 1) and other.shape[2:] == tile.shape[1:]:
        # One vector for all heads, of which no copies are made.
        return (tile.flatten(1) @ other.flatten()).view(-1, n_heads).sum(0)
    if other.dim() == 4:
        other = other.expand(chunk.by_head(tile).shape).flatten(0, 1)
    return _per_head_dot(tile, other, n_heads)


def _per_head_dot(left: Tensor, right: Tensor, n_heads: int) -> Tensor:
    """Sum the product of two (B H, L, *) tensors over all but the heads."""
    product = left.flatten(1).unsqueeze(1) @ right.flatten(1).unsqueeze(2)
    return product.view(-1, n_heads).sum(0)


@blocked_backward.register_fake
def _(
    grad,
    output,
    lse,
    query,
    key,
    value,
    n,
    b,
    mask,
    bias,
    seed,
    scale,
    dropout_p,
    is_causal,
    tile,
    mask_grad,
    bias_grad,
):
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
        n.new_empty(n.shape),
        n.new_empty(n.shape),
        n.new_empty(mask.shape if mask_grad else 0),
        n.new_empty(bias.shape if bias_grad else 0),
    )


def _save(ctx, inputs, output):
    *tensors, ctx.scale, ctx.dropout_p, ctx.is_causal, ctx.tile = inputs
    ctx.save_for_backward(*output, *tensors)


def _differentiate(ctx, grad, grad_lse):
    output, lse, *tensors = ctx.saved_tensors
    mask, bias = tensors[5:7]
    mask_grad, bias_grad = ctx.needs_input_grad[5:7]
    options = ctx.scale, ctx.dropout_p, ctx.is_causal, ctx.tile, mask_grad, bias_grad
    *grads, grad_mask, grad_bias = blocked_backward(
        grad, output, lse, *tensors, *options
    )
    grad_mask = grad_mask.to(mask.dtype) if mask_grad else None
    grad_bias = grad_bias.to(bias.dtype) if bias_grad else None
    return (*grads, grad_mask, grad_bias, *[None] * 5)


def _refuse(ctx, *grads):
    raise RuntimeError(
        "The blocked backend of SSA attention has no second derivative. "
        "Pass backend='eager', which keeps all L x S scores."
    )


blocked_forward.register_autograd(_differentiate, setup_context=_save)
blocked_backward.register_autograd(_refuse)
