"""Tiles of transformed scores, the working parts of the row-blocked operator."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Values of a floating mask at or below this remove the key, as ``-inf`` does.
MASKED_BELOW = -1e4

# Scores in one tile, unless its rows are too few: enough to hide the cost of starting
# an operation, few enough that the four buffers of the backward pass stay in a cache.
_TILE_CPU = 2**17
_TILE_CUDA = 2**24

# Added where a key is masked. Finite, so that its product with a zero gradient is 0.
_NEG = -1e30

# 1 + |x| rounds, which costs n * 6e-8 in float32. Above this n (a converted softmax
# model has 128) log1p is worth its price.
_LOG1P_ABOVE = 8.0

# Bits up to which weights are summed as they are, without subtracting the maximum.
_UNSHIFTED_BELOW = 16.0

LN2 = math.log(2)
_LOG2E = 1 / LN2
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
class Chunk:
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


class Tiling:
    """Cut scores (B, H, L, S) into tiles of full rows."""

    def __init__(self, query: Tensor, key: Tensor, is_causal: bool, tile: int):
        self.batch, heads, self.n_rows = query.shape[:3]
        self.key_heads, self.n_keys = key.shape[1:3]
        self.group = heads // self.key_heads
        self.is_causal = is_causal
        # A matrix product of few rows takes as long as one of 64: it reads all keys.
        rows = max(8, tile // self.n_keys, min(64, tile // 2048))
        rows = min(self.n_rows, rows)
        if is_causal:
            # Low tiles waste less work above the diagonal.
            rows = min(rows, max(64, -(-self.n_rows // 8)))
        self.tile_rows = rows
        # Heads with different n cost a pass more, so that only small ones are joined.
        fit = max(1, tile // 2 // (rows * self.n_keys))
        self.chunk_heads = min(self.key_heads, fit)
        self.chunk_entries = 1
        if self.chunk_heads == self.key_heads:
            self.chunk_entries = min(self.batch, max(1, fit // self.key_heads))
        self.max_size = self.chunk_entries * self.chunk_heads * self.n_keys * rows

    def chunks(self) -> Iterator[list[Chunk]]:
        """Yield chunks, one a query head of the group, that share their keys."""
        for entry in range(0, self.batch, self.chunk_entries):
            entries = slice(entry, min(entry + self.chunk_entries, self.batch))
            for first in range(0, self.key_heads, self.chunk_heads):
                last = min(first + self.chunk_heads, self.key_heads)
                start = entry * self.key_heads + first
                stop = (entries.stop - 1) * self.key_heads + last
                step = self.group
                yield [
                    Chunk(
                        slice(start, stop),
                        slice(start * step + member, stop * step, step),
                        entries,
                        slice(first * step + member, last * step, step),
                    )
                    for member in range(step)
                ]

    def row_ranges(self) -> Iterator[slice]:
        for start in range(0, self.n_rows, self.tile_rows):
            yield slice(start, min(start + self.tile_rows, self.n_rows))

    def by_rows(self, *parts: Tensor) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of each tile and what belongs to them of (C, L, *) parts."""
        split = [part.split(self.tile_rows, dim=1) for part in parts]
        return zip(self.row_ranges(), *split, strict=True)

    def seen(self, part: Tensor, rows: slice) -> Tensor:
        """Take of (C, S, *) keys or values those that some of the rows see."""
        return part[:, : rows.stop] if self.is_causal else part


def log2_weights(mask: Tensor, dtype: torch.dtype, hidden: Tensor | None) -> Tensor:
    """Turn a mask of whole rows into what it adds to log2 of the weights.

    The largest entry of a row is brought to 0, which changes no weight: so a floating
    mask neither overflows weights nor blurs the gradient of n, to which only what
    differs within a row counts. Rows without keys stay at ``_NEG``, as do ``hidden``
    keys, where a floating mask may hold anything.
    """
    if mask.dtype == torch.bool:
        return mask.to(dtype).sub_(1).mul_(-_NEG)
    limit = float(torch.tensor(MASKED_BELOW, dtype=mask.dtype))
    part = torch.nn.functional.threshold(mask.to(dtype), limit, _NEG)
    if hidden is not None:
        part = part.masked_fill(hidden, _NEG)
    top = part.amax(-1, keepdim=True)
    return part.sub_(top.masked_fill_(top < MASKED_BELOW, 0)).mul_(_LOG2E).clamp_(_NEG)


class Scores:
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
        self.tiling = Tiling(query, key, is_causal, tile)
        self.n, self.b, self.mask, self.bias = n, b, mask, bias
        self.n_values = n.tolist()
        self.zero, self.one = n.new_zeros(1), n.new_ones(1)
        self.log1p = max(self.n_values) > _LOG1P_ABOVE
        rows = self.tiling.tile_rows
        self.triangle = n.new_full((rows, rows), _NEG).triu_(1) if is_causal else None
        self.floating = mask is not None and mask.is_floating_point()
        self.added = self.dead = None
        if mask is not None:
            dead = masked_rows(mask, is_causal, self.tiling.n_rows)
            self.dead = dead if bool(dead.any()) else None
            # A row of keys for all queries would become a matrix beside causality.
            grows = self.floating and is_causal and mask.shape[2] == 1
            if mask.shape[1] == 1 and not grows:
                self.added = self.prepare(mask, slice(0, self.tiling.n_rows))
        self.queries = self.without_dead(query * (b * scale).view(-1, 1, 1))
        self.queries = self.queries.flatten(0, 1)
        self.keys = key.to(n.dtype).flatten(0, 1)
        # Largest |x| of queries and keys, without biases.
        self.bound = float(
            self.queries.norm(dim=-1).max() * self.keys.norm(dim=-1).max()
        )
        # Finite scores whose product with b is not count as the largest number.
        self.saturates = math.isinf(self.bound) and all(
            bool(part.isfinite().all()) for part in (query, key)
        )
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

        ``|x|`` is at most ``|q| |k|``, weights grow only polynomially, and the largest
        entry of a mask's row is 0. NaN answers False, and so do biases, which the
        bound does not cover.
        """
        if self.bias is not None:
            return False
        return max(self.n_values) * math.log2(1 + self.bound) <= _UNSHIFTED_BELOW

    def mask_part(self, chunk: Chunk, rows: slice, n_keys: int) -> Tensor | None:
        """Return what the mask adds to a tile's (B, H, R, K), which it broadcasts to.

        Of a mask that all heads share it is made once, of any other for each tile.
        """
        if self.added is not None:
            return chunk.take(self.added, rows, n_keys)
        if self.mask is None:
            return None
        return self.prepare(chunk.take(self.mask, rows, n_keys), rows)

    def prepare(self, mask: Tensor, rows: slice) -> Tensor:
        """Turn the rows of a mask into what they add."""
        hidden = None
        if self.floating and self.tiling.is_causal and mask.shape[3] > 1:
            place = torch.arange(rows.start, rows.stop, device=mask.device)
            keys = torch.arange(mask.shape[3], device=mask.device)
            hidden = keys > place.unsqueeze(-1)
        return log2_weights(mask, self.n.dtype, hidden)

    def transformed(
        self,
        queries: Tensor,
        keys: Tensor,
        chunk: Chunk,
        rows: slice,
        shift: Tensor | None = None,
        one_plus: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute log2 of a tile's weights, masks included, plus ``shift``.

        Returns the second and the first buffer, result and free space, and what the
        mask added; ``one_plus`` receives 1 + |x|.
        """
        n_keys = keys.shape[1]
        x, result = self.buffers((*queries.shape[:2], n_keys))[:2]
        torch.bmm(queries, keys.mT, out=x)
        if self.bias is not None:
            bias = chunk.take(self.bias, rows, n_keys).to(x.dtype)
            chunk.by_head(x).addcmul_(bias, self.b[chunk.heads].view(-1, 1, 1))
        if self.saturates:
            limit = torch.finfo(x.dtype).max
            x.clamp_(-limit, limit)
        # |x| as x sgn(x): the sign is needed in any case, and this adds 1 on the way.
        sign = torch.sign(x, out=result)
        if self.log1p:
            x.mul_(sign)
            if one_plus is not None:
                torch.add(x, 1, out=one_plus)
            x.log1p_()
            factor = _LOG2E
        else:
            size = torch.addcmul(
                self.one, x, sign, out=x if one_plus is None else one_plus
            )
            torch.log2(size, out=x)
            factor = 1.0
        values = self.n_values[chunk.heads]
        if min(values) == max(values):
            factor *= values[0]
        else:
            chunk.by_head(sign).mul_(self.n[chunk.heads].view(-1, 1, 1))
        part = self.mask_part(chunk, rows, n_keys)
        if part is None:
            start = self.zero if shift is None else shift
            torch.addcmul(start, sign, x, value=factor, out=result)
        else:
            factors = (chunk.by_head(tile) for tile in (sign, x))
            torch.addcmul(part, *factors, value=factor, out=chunk.by_head(result))
            if shift is not None:
                result.add_(shift)
        if self.triangle is not None and rows.start < n_keys:
            high, wide = rows.stop - rows.start, n_keys - rows.start
            result[..., rows.start :].add_(self.triangle[:high, :wide])
        return result, x, part
