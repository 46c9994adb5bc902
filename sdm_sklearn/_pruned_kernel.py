"""The inner loops of the pruned search, compiled by numba. Imported on first use."""

from typing import NamedTuple

import numba
import numpy as np

# What the compiler knows to be constant it turns into straight vector instructions.
# Coordinates of a point by which it may be ruled out.
N_LEADING = 12
# Points of a cell.
N_MEMBERS = 16
# Queries that are answered together.
N_BLOCK = 32
# Cells near a block whose points are tried first, to begin with a small radius.
_N_FIRST = 16
# Cells that all queries of a block visit in turn: they stay in the processor's cache.
_N_VISITED = 32


class Index(NamedTuple):
    """Points in the order of the cells that they lie in, and the cells."""

    points: np.ndarray  # (n_points, n_axes), in the order of exact search
    position: np.ndarray  # (n_points,) of each point among these
    rotated: np.ndarray  # (n_points, n_axes), float32, search units
    counts: np.ndarray  # (n_points,) rows that are copies of the point
    first_row: np.ndarray  # (n_points,)
    second_row: np.ndarray  # (n_points,) for the point that the query is itself
    starts: np.ndarray  # (n_classes + 2,) first point of each group
    cell_starts: np.ndarray  # (n_classes + 2,) first cell of each group
    begin: np.ndarray  # (n_cells + 1,) first point of each cell
    leading: np.ndarray  # (n_cells, N_LEADING * N_MEMBERS), float32, axis by axis
    low: np.ndarray  # (N_LEADING, n_cells), float32, the box around each cell
    high: np.ndarray  # (N_LEADING, n_cells), float32
    scale: float  # squared length of a search unit
    relative: float  # relative rounding error of a squared distance in float32
    ends: np.ndarray  # see `_measure`
    merges: np.ndarray


class Queries(NamedTuple):
    """What is asked."""

    points: np.ndarray  # (n_queries, n_axes)
    rotated: np.ndarray  # (n_queries, n_axes), float32, search units
    leading: np.ndarray  # (n_queries, N_LEADING), float32
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
def _bound_cells(a_low, a_high, low, high, bound):
    """Squared distances of a box, which may be a point, to the boxes of cells."""
    bound[:] = 0
    for j in range(N_LEADING):
        x, y, left, right = a_low[j], a_high[j], low[j], high[j]
        for k in range(len(bound)):
            gap = max(left[k] - y, np.float32(0)) + max(x - right[k], np.float32(0))
            bound[k] += gap * gap


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
def search(index, queries, order, blocks, candidates, answers):
    """Fill in the answers to blocks of near queries of the same predicted class.

    `blocks` are the places in `order` where a block begins, and where the last one
    ends. `candidates` are points, or -1, tried first as breakers.
    """
    bound = np.empty(index.low.shape[1], dtype=np.float32)
    limits = np.empty(N_BLOCK, dtype=np.float32)
    near = np.empty(max(_N_FIRST, _N_VISITED) * N_MEMBERS, dtype=np.int64)
    previous = np.full(1, -1)
    for begin, end in zip(blocks[:-1], blocks[1:]):
        block = order[begin:end]
        leading = queries.leading[block]
        low, high = _box(leading)
        code = queries.codes[block[0]]
        own = range(index.cell_starts[code], index.cell_starts[code + 1])
        middle = (low + high) / np.float32(2)
        _bound_cells(middle, middle, index.low, index.high, bound)
        first = _list_nearest_others(bound, own)
        for t, i in enumerate(block):
            _try_breakers(index, queries, i, candidates[i], answers)
            _try_breakers(index, queries, i, previous, answers)
            limit = _limit(answers.radius[i], queries.delta[i], index)
            found = _collect(first, leading[t], limit, index.begin, index.leading, near)
            _try_breakers(index, queries, i, found, answers)
            limits[t] = _limit(answers.radius[i], queries.delta[i], index)
            previous[0] = answers.breaker[i]
        _bound_cells(low, high, index.low, index.high, bound)
        bound[first] = np.inf  # have been visited
        _visit(index, queries, block, leading, limits, bound, own, False, near, answers)
        _visit(index, queries, block, leading, limits, bound, own, True, near, answers)
        for i in block:
            point = queries.own[i]
            if (
                index.starts[code] <= point < index.starts[code + 1]
                and point != queries.left_out[i]
                and answers.radius[i] > 0
            ):
                answers.similarity[i] -= 1  # among its copies it counted itself


@_compile()
def _visit(index, queries, block, leading, limits, bound, own, inside, near, answers):
    """Try all breakers in reach, or else count the extenders inside the radius."""
    cells = _list_in_reach(bound, limits[: len(block)].max(), own, inside)
    low, high = _take(index.low, cells), _take(index.high, cells)
    bounds = np.empty((len(block), len(cells)), dtype=np.float32)
    for t in range(len(block)):
        _bound_cells(leading[t], leading[t], low, high, bounds[t])
    visited = np.empty(_N_VISITED, dtype=np.int64)
    for start in range(0, len(cells), _N_VISITED):
        stop = min(start + _N_VISITED, len(cells))
        for t, i in enumerate(block):
            n = 0
            for k in range(start, stop):
                # Without a branch, which could not be foretold.
                visited[n] = cells[k]
                n += np.int64(bounds[t, k] <= limits[t])
            found = _collect(
                visited[:n], leading[t], limits[t], index.begin, index.leading, near
            )
            if len(found) == 0:
                continue
            if inside:
                _count_extenders(index, queries, i, found, limits[t], answers)
            else:
                _try_breakers(index, queries, i, found, answers)
                limits[t] = _limit(answers.radius[i], queries.delta[i], index)


@_compile()
def _box(values):
    """The least and the greatest coordinates of some rows."""
    low, high = values[0].copy(), values[0].copy()
    for row in values:
        for j in range(len(row)):
            low[j] = min(low[j], row[j])
            high[j] = max(high[j], row[j])
    return low, high


@_compile()
def _take(values, columns):
    """Copy some columns."""
    taken = np.empty((len(values), len(columns)), dtype=values.dtype)
    for j in range(len(values)):
        for k in range(len(columns)):
            taken[j, k] = values[j, columns[k]]
    return taken


@_compile()
def _list_nearest_others(bound, own):
    """List the nearest cells outside an own group, nearest first."""
    nearest = np.empty(_N_FIRST, dtype=np.int64)
    n = 0
    for k in range(len(bound)):
        if k in own or (n == _N_FIRST and bound[k] >= bound[nearest[n - 1]]):
            continue
        n = min(n + 1, _N_FIRST)
        place = n - 1
        while place > 0 and bound[k] < bound[nearest[place - 1]]:
            nearest[place] = nearest[place - 1]
            place -= 1
        nearest[place] = k
    return nearest[:n]


@_compile()
def _list_in_reach(bound, limit, own, inside):
    """List the cells within a bound, either the own group's or all others."""
    cells = np.empty(len(bound), dtype=np.int64)
    n = 0
    for k in range(len(bound)):
        if bound[k] <= limit and inside == (k in own):
            cells[n] = k
            n += 1
    return cells[:n]


@_compile(fastmath=True)
def _collect(visited, a, limit, begin, leading, near):
    """List the points of some cells that are in reach along the leading axes."""
    # Not the constant: a loop whose length the compiler knows is unrolled before it
    # can become vector instructions.
    n_members = leading.shape[1] // N_LEADING
    bound = np.empty(n_members, dtype=np.float32)
    n = 0
    for k in visited:
        for member in range(n_members):
            total = np.float32(0)
            for j in range(N_LEADING):
                gap = leading[k, j * N_MEMBERS + member] - a[j]
                total += gap * gap
            bound[member] = total
        for member in range(begin[k + 1] - begin[k]):
            if bound[member] <= limit:
                near[n] = begin[k] + member
                n += 1
    return near[:n]


@_compile()
def split_points(values, rows, starts, size):
    """Cut groups of rows into parts of near values, half by half.

    Parameters
    ----------
    values : ndarray of shape (n_samples, n_axes), dtype=float32
        Coordinates.
    rows : ndarray of int
        Rows to cut, group by group.
    starts : ndarray of int
        Where in `rows` each group begins, and where the last one ends.
    size : int
        Largest size of a part; all but few have it.

    Returns
    -------
    rows : ndarray of int
        Part by part.
    begin : ndarray of int
        Where in `rows` each part begins, and where the last one ends.
    """
    rows = rows.copy()
    begin = [0]
    for group in range(len(starts) - 1):
        stack = [(starts[group], starts[group + 1])]
        while len(stack) > 0:
            first, last = stack.pop()
            if last - first <= size:
                if last > first:
                    begin.append(last)
                continue
            part = rows[first:last]
            keys = values[part, _widest_axis(values, part)]
            half = -(-(last - first) // (2 * size)) * size
            rows[first:last] = part[np.argpartition(keys, half)]
            stack.append((first + half, last))
            stack.append((first, first + half))
    return rows, np.array(begin)


@_compile()
def _widest_axis(values, rows):
    """The axis along which rows vary most."""
    total, squares = np.zeros((2, values.shape[1]))
    shift = values[rows[0]]
    for row in rows:
        for j in range(len(total)):
            value = np.float64(values[row, j] - shift[j])
            total[j] += value
            squares[j] += value * value
    return np.argmax(squares - total * total / len(rows))


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
        point = index.position[b]
        squared = _measure(a, points[point], zero, index.ends, index.merges)
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
        point = index.position[b]
        squared = _measure(a, points[point], zero, index.ends, index.merges)
        if rough >= sure and squared < radius:
            count += counts[b]
        if squared < nearest or (
            squared == nearest and _comes_first(index, b, extender, itself)
        ):
            nearest, extender = squared, b
            near_limit = _limit(nearest, delta, index)
    answers.similarity[i] += count
    answers.near[i], answers.extender[i] = nearest, extender
