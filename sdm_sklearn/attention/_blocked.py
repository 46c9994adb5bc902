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

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Values of a floating mask at or below this remove the key, as ``-inf`` does.
MASKED_BELOW = -1e4

# Scores in one tile: enough to hide the cost of starting an operation, few enough
# that the backward pass's four buffers stay in a common last-level cache.
_TILE_CPU = 2**18
_TILE_CUDA = 2**24

# Added where a key is masked. Finite, so that its product with a zero gradient is 0.
_NEG = -1e30

# 1 + |x| rounds, which costs n * 6e-8 in float32. Above this n (a converted softmax
# model has 128) log1p is worth its price.
_LOG1P_ABOVE = 8.0

# Bits up to which weights are summed as they are, without subtracting the maximum.
_UNSHIFTED_BELOW = 16.0

_LN2 = math.log(2)
_LOG2E = 1 / _LN2
_ALL = slice(None)


def default_tile(device_type: str) -> int:
    """Return the number of scores computed at once on a device."""
    return _TILE_CUDA if device_type == "cuda" else _TILE_CPU


def masked_rows(mask: Tensor, is_causal: bool, n_rows: int) -> Tensor:
    """Mark the rows in which no key is kept, from the mask alone.

    Parameters
    ----------
    mask : Tensor of shape (..., L or 1, S or 1)
        Boolean (True keeps) or floating (added to the transformed scores).
    is_causal : bool
        Whether row i additionally sees only the keys up to i.
    n_rows : int
        L, the number of rows.

    Returns
    -------
    Tensor of shape (..., L or 1, 1), bool
    """
    keep = mask if mask.dtype == torch.bool else ~(mask <= MASKED_BELOW)
    dead = ~keep.any(-1, keepdim=True)
    if is_causal and mask.shape[-1] > 1:
        first = keep.to(torch.uint8).argmax(-1, keepdim=True)
        rows = torch.arange(n_rows, device=mask.device).unsqueeze(-1)
        dead = dead | (first > rows)
    return dead


@dataclass(frozen=True)
class _Chunk:
    """Heads of one or more batch entries whose scores are computed at once.

    ``keys`` and ``queries`` index the flattened (B Hk) and (B H) dimensions, one query
    head for each key head; ``entries`` and ``heads`` are the same queries in B and H.
    """

    keys: slice
    queries: slice
    entries: slice
    heads: slice

    def by_head(self, tile: Tensor) -> Tensor:
        """View a tile (C, R, K) as (B, H, R, K)."""
        return tile.unflatten(0, (self.entries.stop - self.entries.start, -1))

    def take(self, full: Tensor, rows: slice, n_keys: int) -> Tensor:
        """Slice what broadcasts to (B, H, L, S); dimensions of size 1 stay."""
        if full.shape[0] > 1:
            full = full[self.entries]
        if full.shape[1] > 1:
            full = full[:, self.heads]
        if full.shape[2] > 1:
            full = full[:, :, rows]
        if full.shape[3] > 1:
            full = full[..., :n_keys]
        return full


class _Tiling:
    """Cut scores (B, H, L, S) into tiles of full rows."""

    def __init__(self, query: Tensor, key: Tensor, is_causal: bool, tile: int):
        self.batch, heads, self.n_rows = query.shape[:3]
        self.key_heads, self.n_keys = key.shape[1:3]
        self.group = heads // self.key_heads
        self.is_causal = is_causal
        rows = min(self.n_rows, max(8, tile // self.n_keys))
        if is_causal:
            # Low tiles waste less work above the diagonal.
            rows = min(rows, max(64, -(-self.n_rows // 8)))
        self.tile_rows = rows
        fit = max(1, tile // (rows * self.n_keys))
        self.chunk_heads = min(self.key_heads, fit)
        self.chunk_entries = 1
        if self.chunk_heads == self.key_heads:
            self.chunk_entries = min(self.batch, max(1, fit // self.key_heads))
        self.max_size = self.chunk_entries * self.chunk_heads * self.n_keys * rows

    def chunks(self) -> Iterator[list[_Chunk]]:
        """Yield chunks, one a query head of the group, that share their keys."""
        for entry in range(0, self.batch, self.chunk_entries):
            entries = slice(entry, min(entry + self.chunk_entries, self.batch))
            for first in range(0, self.key_heads, self.chunk_heads):
                last = min(first + self.chunk_heads, self.key_heads)
                start = entry * self.key_heads + first
                stop = (entries.stop - 1) * self.key_heads + last
                step = self.group
                yield [
                    _Chunk(
                        slice(start, stop),
                        slice(start * step + member, stop * step, step),
                        entries,
                        slice(first * step + member, last * step, step),
                    )
                    for member in range(step)
                ]

    def row_ranges(self) -> Iterator[tuple[slice, int]]:
        """Yield (rows, number of keys these rows may see)."""
        for start in range(0, self.n_rows, self.tile_rows):
            stop = min(start + self.tile_rows, self.n_rows)
            yield (
                slice(start, stop),
                min(self.n_keys, stop) if self.is_causal else self.n_keys,
            )


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a tile of a mask into what is added to the transformed scores."""
    if mask.dtype == torch.bool:
        return mask.to(dtype).sub_(1).mul_(-_NEG)
    limit = float(torch.tensor(MASKED_BELOW, dtype=mask.dtype))
    return torch.nn.functional.threshold(mask.to(dtype), limit, _NEG)


class _Scores:
    """From queries and keys to transformed and masked scores, in base 2.

    Per-head work is done once for all heads; a tile costs as few operations as
    possible, since starting one takes as long as a thousand scores.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        n: Tensor,
        b: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        scale: float,
        is_causal: bool,
        tile: int,
        n_buffers: int,
    ):
        self.tiling = _Tiling(query, key, is_causal, tile)
        self.n, self.b, self.mask, self.bias = n, b, mask, bias
        self.n_values = n.tolist()
        self.log1p = max(self.n_values) > _LOG1P_ABOVE
        rows = self.tiling.tile_rows
        self.triangle = n.new_full((rows, rows), _NEG).triu_(1) if is_causal else None
        self.dead = None
        if mask is not None:
            dead = masked_rows(mask, is_causal, self.tiling.n_rows)
            self.dead = dead if bool(dead.any()) else None
        self.queries = self.without_dead(query * (b * scale).view(-1, 1, 1))
        self.queries = self.queries.flatten(0, 1)
        self.keys = key.to(n.dtype).flatten(0, 1)
        self._space = [n.new_empty(self.tiling.max_size) for _ in range(n_buffers)]
        self._views: dict[tuple[int, ...], list[Tensor]] = {}

    def without_dead(self, tensor: Tensor) -> Tensor:
        """Set the rows without keys to 0 in a (B, H, L, *) tensor.

        So a NaN query that sees no key stays out of every output and gradient.
        """
        return tensor if self.dead is None else tensor.masked_fill(self.dead, 0)

    def buffers(self, shape: tuple[int, ...]) -> list[Tensor]:
        """Return the working space of a tile, which the next tile overwrites."""
        if shape not in self._views:
            size = math.prod(shape)
            self._views[shape] = [part[:size].view(shape) for part in self._space]
        return self._views[shape]

    def are_small(self) -> bool:
        """Whether no weight can overflow without a shift by the row's maximum.

        ``|x|`` is at most ``|q| |k|``, and weights grow only polynomially. NaN answers
        False, and so do biases and floating masks, which the bound does not cover.
        """
        if self.bias is not None:
            return False
        if self.mask is not None and self.mask.is_floating_point():
            return False
        bound = self.queries.norm(dim=-1).max() * self.keys.norm(dim=-1).max()
        return max(self.n_values) * math.log2(1 + float(bound)) <= _UNSHIFTED_BELOW

    def transformed(
        self,
        queries: Tensor,
        keys: Tensor,
        chunk: _Chunk,
        rows: slice,
        base: Tensor,
        one_plus: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute log2 of a tile's weights, masks included, plus ``base``.

        Returns the second and the first buffer, result and free space; ``one_plus``
        receives 1 + |x|.
        """
        n_keys = keys.shape[1]
        x, result = self.buffers((*queries.shape[:2], n_keys))[:2]
        torch.bmm(queries, keys.mT, out=x)
        if self.bias is not None:
            bias = chunk.take(self.bias, rows, n_keys).to(x.dtype)
            chunk.by_head(x).addcmul_(bias, self.b[chunk.heads].view(-1, 1, 1))
        size = torch.abs(x, out=result if one_plus is None else one_plus)
        if self.log1p:
            torch.log1p(size, out=result)
            factor = _LOG2E
            if one_plus is not None:
                one_plus.add_(1)
        else:
            torch.log2(size.add_(1), out=result)
            factor = 1.0
        x.sign_()
        values = self.n_values[chunk.heads]
        if min(values) == max(values):
            factor *= values[0]
        else:
            chunk.by_head(x).mul_(self.n[chunk.heads].view(-1, 1, 1))
        torch.addcmul(base, x, result, value=factor, out=result)
        if self.mask is not None:
            mask = _additive(chunk.take(self.mask, rows, n_keys), x.dtype)
            chunk.by_head(result).add_(mask, alpha=_LOG2E)
        if self.triangle is not None and rows.start < n_keys:
            high, wide = rows.stop - rows.start, n_keys - rows.start
            result[..., rows.start :].add_(self.triangle[:high, :wide])
        return result, x


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


@torch.library.custom_op("sdm_sklearn::ssa_blocked", mutates_args=())
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
    lse : Tensor of shape (B, H, L)
        log2 of each row's sum of weights, from which the backward pass normalises.
    """
    scores = _Scores(query, key, n, b, mask, bias, scale, is_causal, tile, n_buffers=2)
    dropout = _Dropout(dropout_p, seed, query.device)
    small = scores.are_small()
    values = value.to(n.dtype).flatten(0, 1)
    output = n.new_empty(*query.shape[:3], value.shape[-1])
    flat_output = output.flatten(0, 1)
    total = n.new_empty(*flat_output.shape[:2], 1)
    top = None if small else torch.empty_like(total)
    base = n.new_zeros(1)
    count = 0
    for group in scores.tiling.chunks():
        chunk_keys, chunk_values = scores.keys[group[0].keys], values[group[0].keys]
        for chunk in group:
            queries, mixed = scores.queries[chunk.queries], flat_output[chunk.queries]
            for rows, n_keys in scores.tiling.row_ranges():
                weights, _ = scores.transformed(
                    queries[:, rows], chunk_keys[:, :n_keys], chunk, rows, base
                )
                if top is not None:
                    highest = weights.amax(-1, keepdim=True)
                    weights.sub_(highest)
                    top[chunk.queries, rows] = highest
                weights.exp2_()
                total[chunk.queries, rows] = weights.sum(-1, keepdim=True)
                keep = dropout.mask(weights, count)
                count += 1
                if keep is not None:
                    weights.mul_(keep)
                torch.bmm(weights, chunk_values[:, :n_keys], out=mixed[:, rows])
    flat_output.div_(total)
    lse = total.log2_() if top is None else total.log2_().add_(top)
    output = scores.without_dead(output).to(query.dtype)
    return output, lse.view(query.shape[:3])


@blocked_forward.register_fake
def _(query, key, value, n, b, mask, bias, seed, scale, dropout_p, is_causal, tile):
    output = query.new_empty(*query.shape[:3], value.shape[-1])
    return output, n.new_empty(query.shape[:3])


@torch.library.custom_op("sdm_sklearn::ssa_blocked_backward", mutates_args=())
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
    scores = _Scores(query, key, n, b, mask, bias, scale, is_causal, tile, n_buffers=4)
    dropout = _Dropout(dropout_p, seed, query.device)
    values = value.to(n.dtype).flatten(0, 1)
    upstream = scores.without_dead(grad.to(n.dtype))
    mean = (upstream * output).sum(-1, keepdim=True).flatten(0, 1)
    upstream = upstream.flatten(0, 1)
    # Rows without keys get weights of 2 ** -1e30 = 0.
    base = scores.without_dead(-lse.unsqueeze(-1)).flatten(0, 1)
    grad_query = torch.empty_like(scores.queries)
    grad_key, grad_value = torch.zeros_like(scores.keys), torch.zeros_like(values)
    grad_n, grad_b = n.new_zeros(n.shape), n.new_zeros(n.shape)
    grad_mask = n.new_zeros(mask.shape if mask is not None and mask_grad else 0)
    grad_bias = n.new_zeros(bias.shape if bias is not None and bias_grad else 0)
    count = 0
    for group in scores.tiling.chunks():
        place = group[0].keys
        chunk_keys, chunk_values = scores.keys[place], values[place]
        chunk_grad_key, chunk_grad_value = grad_key[place], grad_value[place]
        for chunk in group:
            queries, chunk_upstream = (
                part[chunk.queries] for part in (scores.queries, upstream)
            )
            heads = chunk.heads
            queries_n = queries * n[heads].repeat(len(queries) // len(n[heads])).view(
                -1, 1, 1
            )
            for rows, n_keys in scores.tiling.row_ranges():
                rows_keys = chunk_keys[:, :n_keys]
                rows_upstream = chunk_upstream[:, rows]
                shape = (*rows_upstream.shape[:2], n_keys)
                one_plus, dt = scores.buffers(shape)[2:]
                log_weights, free = scores.transformed(
                    queries[:, rows],
                    rows_keys,
                    chunk,
                    rows,
                    base[chunk.queries, rows],
                    one_plus,
                )
                weights = torch.exp2(log_weights, out=free)
                torch.bmm(rows_upstream, chunk_values[:, :n_keys].mT, out=dt)
                keep = dropout.mask(weights, count)
                count += 1
                used = weights
                if keep is not None:
                    dt.mul_(keep)
                    used = keep.mul_(weights)
                chunk_grad_value[:, :n_keys].baddbmm_(used.mT, rows_upstream)
                dt.sub_(mean[chunk.queries, rows]).mul_(weights)
                # n times the logarithm is log P plus what a row has in common (whose
                # share is 0, as dt sums to 0) less a floating mask.
                grad_n[heads] += _dot(chunk, dt, log_weights) * _LN2
                if mask is not None and mask.is_floating_point():
                    part = _additive(chunk.take(mask, rows, n_keys), n.dtype)
                    grad_n[heads] -= _dot(chunk, dt, part)
                    if mask_grad:
                        target = chunk.take(grad_mask, rows, n_keys)
                        target += chunk.by_head(dt).sum_to_size(target.shape)
                dx = dt.div_(one_plus)
                if bias is not None:
                    part = chunk.take(bias, rows, n_keys).to(n.dtype)
                    grad_b[heads] += n[heads] * _dot(chunk, dx, part)
                    if bias_grad:
                        target = chunk.take(grad_bias, rows, n_keys)
                        update = chunk.by_head(dx) * (n * b)[heads].view(-1, 1, 1)
                        target += update.sum_to_size(target.shape)
                torch.bmm(dx, rows_keys, out=grad_query[chunk.queries][:, rows])
                chunk_grad_key[:, :n_keys].baddbmm_(dx.mT, queries_n[:, rows])
    grad_b += _per_head_dot(grad_query, scores.queries, len(n)) * n / b
    grad_query = grad_query.view(query.shape) * (n * b * scale).view(-1, 1, 1)
    return (
        grad_query.to(query.dtype),
        grad_key.view(key.shape).to(key.dtype),
        grad_value.view(value.shape).to(value.dtype),
        grad_n / n,
        grad_b,
        grad_mask,
        grad_bias,
    )


def _dot(chunk: _Chunk, tile: Tensor, other: Tensor) -> Tensor:
    """Sum tile * other per head; ``other`` is a tile or broadcasts to (B, H, R, K)."""
    if other.dim() == 4:
        other = other.expand(chunk.by_head(tile).shape).flatten(0, 1)
    n_heads = len(range(*chunk.heads.indices(chunk.heads.stop)))
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
