"""The inner loops of the pruned search, compiled by numba. Imported on first use."""

from typing import NamedTuple

import numba
import numpy as np

# Queries that are answered together: a cell's points stay in the processor's cache.
_BLOCK = 32
# Points listed for a query before they are measured.
_CAPACITY = 4096


class Index(NamedTuple):
    """Points, and the cells that they lie in."""

    points: np.ndarray  # (n_points, n_axes)
    rotated: np.ndarray  # (n_points, n_axes), float32, search units
    counts: np.ndarray  # (n_points,) rows that are copies of the point
    first_row: np.ndarray  # (n_points,)
    second_row: np.ndarray  # (n_points,) for the point that the query is itself
    starts: np.ndarray  # (n_classes + 2,) first point of each group
    cell_starts: np.ndarray  # (n_classes + 2,) first cell of each group
    members: np.ndarray  # (n_cells, n_members), -1 where there is none
    leading: np.ndarray  # (n_cells, n_leading, n_members), float32
    low: np.ndarray  # (n_leading, n_cells), float32
    high: np.ndarray  # (n_leading, n_cells), float32
    scale: float  # squared length of a search unit
    relative: float  # relative rounding error of a squared distance in float32
    ends: np.ndarray  # see `_measure`
    merges: np.ndarray


class Queries(NamedTuple):
    """What is asked."""

    points: np.ndarray  # (n_queries, n_axes)
    rotated: np.ndarray  # (n_queries, n_axes), float32, search units
    leading: np.ndarray  # (n_queries, n_leading), float32
    codes: np.ndarray  # (n_queries,) predicted classes
    own: np.ndarray  # (n_queries,) point that the query itself is, or -1
    left_out: np.ndarray  # (n_queries,) the same unless it has copies
    itself: np.ndarray  # (n_queries,) the same if the query is its first row
    rounding: np.ndarray  # (n_queries,) squared distance that counts as 0
    delta: np.ndarray  # (n_queries,) rounding error of a coordinate in search units


class Answers(NamedTuple):
    """What is known so far."""

    similarity: np.ndarray  # (n_queries,)
    breaker: np.ndarray  # (n_queries,) nearest breaker, or -1
    radius: np.ndarray  # (n_queries,) squared distance to it
    extender: np.ndarray  # (n_queries,) nearest extender inside the radius, or -1
    near: np.ndarray  # (n_queries,) squared distance to it


def _compile(**options):
    """Return a decorator like `numba.njit`, cached on disk where that is possible."""

    def decorate(function):
        try:
            return numba.njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # no folder to cache in is writable
            return numba.njit(nogil=True, **options)(function)

    return decorate


@_compile()
def _add_squares(a, b, begin, end):
    """Squared distance over at most 128 axes."""
    total = 0.0
    n_rest = (end - begin) % 8 if end - begin >= 8 else end - begin
    last = end - n_rest
    if last > begin:
        r0 = r1 = r2 = r3 = r4 = r5 = r6 = r7 = 0.0
        for j in range(begin, last, 8):
            r0 += (a[j] - b[j]) * (a[j] - b[j])
            r1 += (a[j + 1] - b[j + 1]) * (a[j + 1] - b[j + 1])
            r2 += (a[j + 2] - b[j + 2]) * (a[j + 2] - b[j + 2])
            r3 += (a[j + 3] - b[j + 3]) * (a[j + 3] - b[j + 3])
            r4 += (a[j + 4] - b[j + 4]) * (a[j + 4] - b[j + 4])
            r5 += (a[j + 5] - b[j + 5]) * (a[j + 5] - b[j + 5])
            r6 += (a[j + 6] - b[j + 6]) * (a[j + 6] - b[j + 6])
            r7 += (a[j + 7] - b[j + 7]) * (a[j + 7] - b[j + 7])
        total = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for j in range(last, end):
        total += (a[j] - b[j]) * (a[j] - b[j])
    return total


@_compile()
def _measure(a, b, rounding, ends, merges):
    """Squared distance, added in the order of `numpy.sum`.

    So it has the very bits of exact search, and what is a tie there is one here. The
    axes up to each of `ends` are a leaf of numpy's tree of partial sums; `merges` tells
    how many of its inner nodes are complete after it.
    """
    if len(ends) == 1:
        squared = _add_squares(a, b, 0, len(a))
    else:
        sums = np.empty(len(ends))
        n_sums, begin = 0, 0
        for leaf in range(len(ends)):
            sums[n_sums] = _add_squares(a, b, begin, ends[leaf])
            begin = ends[leaf]
            n_sums += 1
            for _ in range(merges[leaf]):
                n_sums -= 1
                sums[n_sums - 1] += sums[n_sums]
        squared = sums[0]
    # What is only rounding is 0, as in exact search.
    return 0.0 if squared <= rounding else squared


@_compile(fastmath=True)
def _measure32(a, b):
    total = np.float32(0)
    for j in range(len(a)):
        total += (a[j] - b[j]) * (a[j] - b[j])
    return total


@_compile(fastmath=True)
def _bound_cells(a, low, high, bound):
    """Squared distances of a query to the boxes of all cells."""
    bound[:] = 0
    for j in range(len(a)):
        x, left, right = a[j], low[j], high[j]
        for k in range(len(bound)):
            gap = max(left[k] - x, np.float32(0)) + max(x - right[k], np.float32(0))
            bound[k] += gap * gap


@_compile(fastmath=True)
def _bound_members(a, cell, limit, bound):
    """Bound the distances to a cell's points; return how many are in reach."""
    bound[:] = 0
    for j in range(0, len(a), 4):
        x0, x1, x2, x3 = a[j], a[j + 1], a[j + 2], a[j + 3]
        c0, c1, c2, c3 = cell[j], cell[j + 1], cell[j + 2], cell[j + 3]
        for k in range(len(bound)):
            g0, g1, g2, g3 = c0[k] - x0, c1[k] - x1, c2[k] - x2, c3[k] - x3
            bound[k] += (g0 * g0 + g1 * g1) + (g2 * g2 + g3 * g3)
    n_within = np.int32(0)
    for k in range(len(bound)):
        n_within += np.int32(bound[k] <= limit)
    return n_within


@_compile()
def _limit(squared, delta, index):
    """Largest result in float32 of what may be within a squared distance."""
    root = np.sqrt(squared / index.scale) + delta
    return np.float32(min(root * root * (1 + index.relative) + 1e-37, 1e38))


@_compile()
def _comes_first(index, point, other, itself):
    """Whether the first row at a point, not the query's own, is before another's."""
    if other < 0:
        return True
    first, second = index.first_row, index.second_row
    row = second[point] if point == itself else first[point]
    return row < (second[other] if other == itself else first[other])


@_compile()
def search(index, queries, order, candidates, answers):
    """Fill in the answers to the queries in `order`, near ones side by side.

    `candidates` are points, or -1, tried first as breakers.
    """
    n_cells = len(index.members)
    bounds = np.empty((n_cells, _BLOCK), dtype=np.float32)
    limits = np.empty(_BLOCK, dtype=np.float32)
    own_cells = np.empty((_BLOCK, 2), dtype=np.int64)
    found = np.empty((_BLOCK, _CAPACITY), dtype=np.int64)
    n_found = np.zeros(_BLOCK, dtype=np.int64)
    bound = np.empty(n_cells, dtype=np.float32)
    previous = np.full(1, -1)
    for begin in range(0, len(order), _BLOCK):
        block = order[begin : begin + _BLOCK]
        leading = queries.leading[block]
        for t, i in enumerate(block):
            code = queries.codes[i]
            own_cells[t] = index.cell_starts[code : code + 2]
            _bound_cells(leading[t], index.low, index.high, bound)
            bounds[:, t] = bound
            _try_breakers(index, queries, i, candidates[i], answers)
            _try_breakers(index, queries, i, previous, answers)
            k = _nearest_other(own_cells[t], bound)
            if k >= 0:
                _try_breakers(index, queries, i, index.members[k], answers)
            limits[t] = _limit(answers.radius[i], queries.delta[i], index)
            previous[0] = answers.breaker[i]
        for inside in (False, True):
            k, last = 0, n_cells
            if inside:
                k = own_cells[: len(block), 0].min()
                last = own_cells[: len(block), 1].max()
            while k < last:
                k = _collect(
                    k,
                    last,
                    inside,
                    own_cells,
                    leading,
                    bounds,
                    limits,
                    index.leading,
                    index.members,
                    found,
                    n_found,
                )
                for t, i in enumerate(block):
                    near = found[t, : n_found[t]]
                    if inside:
                        _count_extenders(index, queries, i, near, limits[t], answers)
                    else:
                        _try_breakers(index, queries, i, near, answers)
                        limits[t] = _limit(answers.radius[i], queries.delta[i], index)
                n_found[:] = 0
        for i in block:
            point, code = queries.own[i], queries.codes[i]
            if (
                index.starts[code] <= point < index.starts[code + 1]
                and point != queries.left_out[i]
                and answers.radius[i] > 0
            ):
                answers.similarity[i] -= 1  # among its copies it counted itself


@_compile()
def _collect(
    start,
    last,
    inside,
    own_cells,
    leading,
    bounds,
    limits,
    cells,
    members,
    found,
    n_found,
):
    """List the points in reach of each query, cell by cell from `start` to `last`.

    Either the cells of the query's own group or all others. Returns the cell to go on
    with when a list is full.
    """
    n_members = members.shape[1]
    within = np.empty(n_members, dtype=np.float32)
    for k in range(start, last):
        for t in range(len(leading)):
            if bounds[k, t] > limits[t]:
                continue
            if inside != (own_cells[t, 0] <= k < own_cells[t, 1]):
                continue
            if not _bound_members(leading[t], cells[k], limits[t], within):
                continue
            n = n_found[t]
            for member in range(n_members):
                if within[member] <= limits[t] and members[k, member] >= 0:
                    found[t, n] = members[k, member]
                    n += 1
            n_found[t] = n
        for t in range(len(leading)):
            if n_found[t] > found.shape[1] - n_members:
                return k + 1
    return last


@_compile()
def _nearest_other(own_cells, bound):
    """The nearest cell of breakers, -1 if there is none."""
    nearest = -1
    for k in range(len(bound)):
        if not own_cells[0] <= k < own_cells[1] and (
            nearest < 0 or bound[k] < bound[nearest]
        ):
            nearest = k
    return nearest


@_compile()
def _try_breakers(index, queries, i, tried, answers):
    """Keep the nearest breaker so far."""
    a, rotated, zero = queries.points[i], queries.rotated[i], queries.rounding[i]
    itself, left_out, code = queries.itself[i], queries.left_out[i], queries.codes[i]
    first, last = index.starts[code], index.starts[code + 1]
    radius, breaker = answers.radius[i], answers.breaker[i]
    limit = _limit(radius, queries.delta[i], index)
    points, points_rotated = index.points, index.rotated
    for b in tried:
        if b < 0 or b == left_out or first <= b < last:
            continue
        if _measure32(rotated, points_rotated[b]) > limit:
            continue
        squared = _measure(a, points[b], zero, index.ends, index.merges)
        if squared < radius or (
            squared == radius and _comes_first(index, b, breaker, itself)
        ):
            radius, breaker = squared, b
            limit = _limit(radius, queries.delta[i], index)
    answers.radius[i], answers.breaker[i] = radius, breaker


@_compile()
def _count_extenders(index, queries, i, near, limit, answers):
    """Count the extenders inside the radius, and keep the nearest."""
    a, rotated, zero = queries.points[i], queries.rotated[i], queries.rounding[i]
    itself, left_out, delta = queries.itself[i], queries.left_out[i], queries.delta[i]
    points, points_rotated, counts = index.points, index.rotated, index.counts
    radius = answers.radius[i]
    root = max(np.sqrt(radius / index.scale) - delta, 0.0)
    sure = np.float32(min(root * root * (1 - index.relative), 1e38))
    nearest, extender = answers.near[i], answers.extender[i]
    near_limit = _limit(nearest, delta, index)
    count = 0
    for b in near:
        if b == left_out:
            continue
        rough = _measure32(rotated, points_rotated[b])
        if rough > limit:
            continue
        if rough < sure:
            count += counts[b]
            if rough > near_limit:
                continue
        squared = _measure(a, points[b], zero, index.ends, index.merges)
        if rough >= sure and squared < radius:
            count += counts[b]
        if squared < nearest or (
            squared == nearest and _comes_first(index, b, extender, itself)
        ):
            nearest, extender = squared, b
            near_limit = _limit(nearest, delta, index)
    answers.similarity[i] += count
    answers.near[i], answers.extender[i] = nearest, extender
