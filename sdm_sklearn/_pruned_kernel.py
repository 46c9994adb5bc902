"""The inner loops of the pruned search, compiled by numba. Imported on first use."""

from typing import NamedTuple

import numba
import numpy as np

# What the compiler knows to be constant it turns into straight vector instructions.
# Coordinates of a point by which it may be ruled out.
N_LEADING = 12
# Points of a cell.
N_MEMBERS = 64
# Cells whose points are tried first, to begin with a small radius.
_N_FIRST = 4


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
    leading: np.ndarray  # (n_cells, N_LEADING * N_MEMBERS), int8, axis by axis
    low: np.ndarray  # (N_LEADING, n_cells), int16, the box around each cell
    high: np.ndarray  # (N_LEADING, n_cells), int16
    step: float  # what these are counted in, in search units
    scale: float  # squared length of a search unit
    relative: float  # relative rounding error of a squared distance in float32
    ends: np.ndarray  # see `_measure`
    merges: np.ndarray


class Queries(NamedTuple):
    """What is asked."""

    points: np.ndarray  # (n_queries, n_axes)
    rotated: np.ndarray  # (n_queries, n_axes), float32, search units
    leading: np.ndarray  # (n_queries, N_LEADING), int16, in steps
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
    # What is only rounding is 0, as in exact search. Beyond all numbers nothing is.
    return 0.0 if squared <= rounding and squared < np.inf else squared


@_compile(fastmath=True)
def _measure_roughly(a, points, tried, rough):
    """Squared distances to some points in float32."""
    # Without a branch in between, so that the processor fetches many at a time.
    for k in range(len(tried)):
        b = points[tried[k]]
        total = np.float32(0)
        for j in range(len(a)):
            total += (a[j] - b[j]) * (a[j] - b[j])
        rough[k] = total


@_compile()
def _bound_cells(a, low, high, bound):
    """Squared distances of a query to the boxes of all cells, in steps.

    What exceeds 16 bits starts again from 0: such a cell may be searched in vain.
    """
    bound[:] = 0
    for j in range(N_LEADING):
        x, left, right = a[j], low[j], high[j]
        for k in range(len(bound)):
            gap = np.int16(max(left[k], min(x, right[k])) - x)
            bound[k] = np.uint16(bound[k] + np.uint16(gap * gap))


@_compile()
def _reach(limit, step):
    """Largest squared distance in steps of what may be within a squared distance."""
    # Along every axis both ends are rounded by half a step. One more for the division.
    root = np.sqrt(np.float64(limit)) / step + np.sqrt(N_LEADING)
    return np.uint16(min(root * root + 1, 65535.0))


@_compile()
def _limit(squared, zero, delta, index):
    """Largest result in float32 of what may be within a squared distance.

    All within `zero` are at distance 0, and none of them may be missed.
    """
    root = np.sqrt(max(squared, zero) / index.scale) + delta
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
    """Fill in the answers to the queries in `order`.

    Best near ones follow each other: they reach the same cells, which stay in the
    processor's cache. `candidates` are points, or -1, tried first as breakers.
    """
    n_cells = index.low.shape[1]
    bound = np.empty(n_cells, dtype=np.uint16)
    cells = np.empty(n_cells, dtype=np.int64)
    within = np.empty(N_MEMBERS, dtype=np.uint16)
    near = np.empty(n_cells * N_MEMBERS, dtype=np.int64)
    rough = np.empty(max(len(near), candidates.shape[1]), dtype=np.float32)
    previous = np.full(1, -1)
    begin, leading = index.begin, index.leading
    for i in order:
        a, delta, code = queries.leading[i], queries.delta[i], queries.codes[i]
        zero = queries.rounding[i]
        first, last = index.cell_starts[code], index.cell_starts[code + 1]
        _bound_cells(a, index.low, index.high, bound)
        # Any breakers give a radius to begin with, near ones a small one.
        _try_breakers(index, queries, i, candidates[i], rough, answers)
        _try_breakers(index, queries, i, previous, rough, answers)
        n = _list_nearest_others(bound, first, last, cells)
        _pick_nearest(cells[:n], a, begin, leading, within, near)
        _try_breakers(index, queries, i, near[:n], rough, answers)
        reach = _reach(_limit(answers.radius[i], zero, delta, index), index.step)
        n = _list_in_reach(bound, 0, first, reach, cells, 0)
        n = _list_in_reach(bound, last, n_cells, reach, cells, n)
        n = _collect(cells[:n], a, reach, begin, leading, within, near)
        _try_breakers(index, queries, i, near[:n], rough, answers)
        previous[0] = answers.breaker[i]
        limit = _limit(answers.radius[i], zero, delta, index)
        reach = _reach(limit, index.step)
        n = _list_in_reach(bound, first, last, reach, cells, 0)
        n = _collect(cells[:n], a, reach, begin, leading, within, near)
        _count_extenders(index, queries, i, near[:n], rough, limit, answers)
        point = queries.own[i]
        if (
            index.starts[code] <= point < index.starts[code + 1]
            and point != queries.left_out[i]
            and answers.radius[i] > 0
        ):
            answers.similarity[i] -= 1  # among its copies it counted itself


@_compile()
def _list_nearest_others(bound, first, last, cells):
    """List the nearest cells outside an own group; return how many."""
    n = 0
    farthest = np.uint16(65535)
    for k in range(len(bound)):
        if bound[k] >= farthest:
            continue
        if first <= k < last:
            continue
        n = min(n + 1, _N_FIRST)
        place = n - 1
        while place > 0 and bound[k] < bound[cells[place - 1]]:
            cells[place] = cells[place - 1]
            place -= 1
        cells[place] = k
        if n == _N_FIRST:
            farthest = bound[cells[n - 1]]
    return n


@_compile()
def _list_in_reach(bound, begin, end, limit, cells, n):
    """Add the cells of a range that are within a limit to a list of n of them."""
    part = bound[begin:end]
    place = np.uintp(n)
    for k in range(len(part)):
        # Without a branch, which the processor could not foretell.
        cells[place] = begin + k
        place += np.uintp(part[k] <= limit)
    return np.intp(place)


@_compile()
def _pick_nearest(cells, a, begin, leading, within, near):
    """List the nearest point of each cell along the leading axes."""
    for place in range(len(cells)):
        k = cells[place]
        _measure_cell(leading[k], a, np.uint16(0), within)
        # What repeats the last point of a cell comes after it.
        near[place] = begin[k] + np.argmin(within)


@_compile(inline="always")
def _measure_cell(leading, a, limit, within):
    """Squared distances to the points of a cell; return how many are within a limit.

    In steps. What exceeds 16 bits starts again from 0: such a point may be measured in
    vain.
    """
    n_near = np.int16(0)
    # Not the constant: a loop whose length the compiler knows is unrolled before it
    # can become vector instructions.
    for member in range(len(within)):
        total = np.uint16(0)
        for j in range(N_LEADING):
            gap = np.int16(leading[j * N_MEMBERS + member] - a[j])
            total = np.uint16(total + np.uint16(gap * gap))
        within[member] = total
        n_near = np.int16(n_near + np.int16(total <= limit))
    return n_near


@_compile()
def _collect(cells, a, limit, begin, leading, within, near):
    """List the points of some cells in reach along the leading axes; return how many.

    `within` is room for the squared distances to the points of a cell.
    """
    n = np.uintp(0)
    for k in cells:
        # Most cells hold none, which is soon seen.
        if _measure_cell(leading[k], a, limit, within) == 0:
            continue
        first = begin[k]
        for member in range(begin[k + 1] - first):
            near[n] = first + member
            n += np.uintp(within[member] <= limit)
    return np.intp(n)


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
def _try_breakers(index, queries, i, tried, rough, answers):
    """Keep the nearest breaker so far."""
    a, rotated, zero = queries.points[i], queries.rotated[i], queries.rounding[i]
    itself, left_out, code = queries.itself[i], queries.left_out[i], queries.codes[i]
    first, last = index.starts[code], index.starts[code + 1]
    radius, breaker = answers.radius[i], answers.breaker[i]
    limit = _limit(radius, zero, queries.delta[i], index)
    points, points_rotated = index.points, index.rotated
    _measure_roughly(rotated, points_rotated, tried, rough)
    for k in range(len(tried)):
        b = tried[k]
        if rough[k] > limit or b < 0 or b == left_out or first <= b < last:
            continue
        point = index.position[b]
        squared = _measure(a, points[point], zero, index.ends, index.merges)
        if squared < radius or (
            squared == radius and _comes_first(index, b, breaker, itself)
        ):
            radius, breaker = squared, b
            limit = _limit(radius, zero, queries.delta[i], index)
    answers.radius[i], answers.breaker[i] = radius, breaker


@_compile()
def _count_extenders(index, queries, i, near, roughs, limit, answers):
    """Count the extenders inside the radius, and keep the nearest."""
    a, rotated, zero = queries.points[i], queries.rotated[i], queries.rounding[i]
    itself, left_out, delta = queries.itself[i], queries.left_out[i], queries.delta[i]
    points, points_rotated, counts = index.points, index.rotated, index.counts
    radius = answers.radius[i]
    root = max(np.sqrt(radius / index.scale) - delta, 0.0)
    sure = np.float32(min(root * root * (1 - index.relative), 1e38))
    nearest, extender = answers.near[i], answers.extender[i]
    near_limit = _limit(nearest, zero, delta, index)
    count = 0
    _measure_roughly(rotated, points_rotated, near, roughs)
    for k in range(len(near)):
        b, rough = near[k], roughs[k]
        if rough > limit or b == left_out:
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
            near_limit = _limit(nearest, zero, delta, index)
    answers.similarity[i] += count
    answers.near[i], answers.extender[i] = nearest, extender
