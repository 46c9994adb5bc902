"""Exact search among training exemplars: Similarity q, nearest distance, neighbours.

The Similarity needs no sorted neighbour list. Call a training point a *breaker* for
class c unless both its label and its prediction are c, and let r be the distance from a
query to its nearest breaker for the predicted class. Then q = #{training points nearer
than r}: a breaker at the same distance breaks the run.

The search runs on blockwise matrix products in float32, whose rounding error is
bounded. Only what lies within that bound of a decision is measured again, by direct
difference in float64. So the results are those of direct differences throughout, and
depend neither on the batch nor on its order.

Copies of a point, as of an empty text, are searched once and counted as often as they
stand in the data.
"""

import math
import threading
from functools import cached_property, partial

import numpy as np

from sdm_sklearn._blocks import in_blocks
from sdm_sklearn._threads import count_threads, map_in_threads

# A block of squared distances, one a thread, holds about this many entries: 32 MiB in
# float32.
_BLOCK_ENTRIES = 2**23
# So many distances are found before a thread has started.
_ONE_THREAD_ENTRIES = 2**18
# Values of vectors that are worked on together, in float64: what stays in the cache
# costs neither memory traffic nor fresh pages.
_CACHED_ENTRIES = 2**16
# Distances below this share of the lengths involved are rounding and count as 0: an
# exact copy of an exemplar must be one on every processor.
_ROUNDING = 1e-12
# A row with more undecided points than this in float32 is searched again in float64.
_MAX_UNDECIDED = 64


class ExactNeighbors:
    """Exact nearest-exemplar search with the breaker-radius identity.

    Parameters
    ----------
    support : ndarray of shape (n_support, n_dimensions), dtype=float64
        Representations of the training points.
    labels : ndarray of shape (n_support,)
        True class codes. A code outside 0 to n_classes - 1 only breaks runs.
    predictions : ndarray of shape (n_support,)
        Predicted class codes.
    n_classes : int
        Number of classes.
    """

    def __init__(self, support, labels, predictions, n_classes):
        known = (labels == predictions) & (labels >= 0) & (labels < n_classes)
        # Points that extend the runs of class c stand together, as group c; those that
        # break every run stand last. So both kinds are slices for any prediction.
        group = np.where(known, labels, n_classes)
        point = _number_copies(support, group)
        # Rows of `support` in the order of their points, copies side by side.
        self.order = np.argsort(point, kind="stable")
        self.counts = np.bincount(point)
        first = self.order[np.cumsum(self.counts) - self.counts]
        self.starts = np.searchsorted(group[first], np.arange(n_classes + 2))
        self.points = np.empty((len(first), support.shape[1]))
        np.take(support, first, axis=0, out=self.points, mode="clip")
        self.center = self.points.mean(axis=0)
        self._prepare_search()

    def _prepare_search(self):
        squared_norm, squared_lengths = np.empty((2, len(self.points)))
        for part in _blocks(*self.points.shape):
            points = self.points[part]
            squared_norm[part] = _squared_norm(points - self.center)
            squared_lengths[part] = _squared_norm(points)
        # Search runs on centred points of length at most 1, so that float32 neither
        # overflows nor underflows and offsets cost no digits.
        self.scale = np.sqrt(squared_norm.max()) or 1.0
        # The median: one point far out must not make all others look like copies.
        self._typical_length = np.sqrt(np.median(squared_lengths))
        self._point_of = np.empty(len(self.order), dtype=np.int64)
        self._point_of[self.order] = np.repeat(np.arange(len(self.counts)), self.counts)
        self._begin = np.cumsum(self.counts) - self.counts

    @cached_property
    def _search32(self):
        # Made on first use: the pruned search hardly ever needs it.
        return self._search_matrix(np.float32)

    def _search_matrix(self, dtype):
        """Return (b, |b|^2), so that a product with (-2a, 1) gives |b|^2 - 2ab."""
        matrix = np.empty((len(self.points), self.points.shape[1] + 1), dtype)
        for part in _blocks(*self.points.shape):
            centred = self.points[part] - self.center
            np.divide(centred, self.scale, out=matrix[part, :-1], casting="same_kind")
            # Divided twice: the square of the scale might overflow.
            matrix[part, -1] = _squared_norm(centred) / self.scale / self.scale
        return matrix

    def __getstate__(self):
        # What the search needs beyond the points follows from them.
        state = self.__dict__.copy()
        for name in ("_search32", "_typical_length", "_point_of", "_begin"):
            state.pop(name, None)
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._prepare_search()

    def query(self, queries, predictions, own=None):
        """Compute q, the nearest distance and the nearest training point.

        Parameters
        ----------
        queries : ndarray of shape (n_queries, n_dimensions), dtype=float64
            Representations of the queries.
        predictions : ndarray of shape (n_queries,)
            Predicted class codes of the queries.
        own : ndarray of shape (n_queries,), default=None
            Row of each query in `support`, left out of its own neighbours.

        Returns
        -------
        similarity : ndarray of shape (n_queries,), dtype=float64
        nearest_distance : ndarray of shape (n_queries,), dtype=float64
            L2 distance, inf if there is no other point.
        nearest_index : ndarray of shape (n_queries,), dtype=int64
            Row in `support`, the first of several at the same distance; -1 if there is
            no other point.
        """
        n_queries = len(queries)
        similarity = np.zeros(n_queries)
        nearest_squared = np.full(n_queries, np.inf)
        nearest_index = np.full(n_queries, -1, dtype=np.int64)
        undecided = np.zeros(n_queries, dtype=bool)

        def answer(search, spaces, rows):
            (
                similarity[rows],
                nearest_squared[rows],
                nearest_index[rows],
                undecided[rows],
            ) = self._query_chunk(
                queries[rows],
                predictions[rows],
                None if own is None else own[rows],
                search,
                spaces,
            )

        # Queries of one class share their slices, so they are answered together.
        rows = np.argsort(predictions, kind="stable")
        for dtype in (np.float32, np.float64):
            if len(rows) == 0:
                break
            # Few rows, if any, need float64; its matrix is not kept.
            search = self._search32
            if dtype == np.float64:
                search = self._search_matrix(dtype)
            self._in_chunks(rows, partial(answer, search, _Spaces()))
            rows = rows[undecided[rows]]
        return similarity, np.sqrt(nearest_squared), nearest_index

    def _in_chunks(self, rows, work):
        """Do `work` on chunks of rows whose distances to all points fit a block."""
        step = max(1, _BLOCK_ENTRIES // len(self.points))
        if len(rows) * len(self.points) > _ONE_THREAD_ENTRIES:
            # As many chunks for each thread.
            n_threads = count_threads()
            n_chunks = -(-len(rows) // (step * n_threads)) * n_threads
            step = -(-len(rows) // n_chunks)
        chunks = [rows[start : start + step] for start in range(0, len(rows), step)]
        advice = (
            f"The search among {len(self.points)} exemplars of {self.points.shape[1]} "
            "dimensions does not fit: lower n_filters, fit on fewer rows, or run fewer "
            "searches at a time (n_jobs)."
        )
        map_in_threads(lambda chunk: in_blocks(chunk, step, work, advice), chunks)

    def _query_chunk(self, queries, predictions, own, search, spaces):
        """Answer queries, sorted by prediction, from one product in one precision.

        Returns the similarity, the squared nearest distance, the nearest index, and
        the rows left undecided, which only happens in float32.
        """
        squared, squared_norm, error = self._search_distances(
            queries, own, search, spaces
        )
        rounding = self.rounding(queries)
        codes, begin = np.unique(predictions, return_index=True)
        end = np.append(begin[1:], len(queries))
        parts = [
            self._answer(
                queries[part],
                rounding[part],
                None if own is None else own[part],
                squared[part],
                squared_norm[part],
                error[part],
                code,
                spaces,
            )
            for code, part in zip(codes, map(slice, begin, end), strict=True)
        ]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _answer(
        self, queries, rounding, own, squared, squared_norm, error, code, spaces
    ):
        """Answer queries of one predicted class from their search distances."""
        first, last = self.starts[code], self.starts[code + 1]
        inner, counts = squared[:, first:last], self.counts[first:last]
        # Squared distances to the nearest extender and the nearest breaker.
        near = inner.min(axis=1, initial=np.inf)
        breaker = np.minimum(
            squared[:, :first].min(axis=1, initial=np.inf),
            squared[:, last:].min(axis=1, initial=np.inf),
        )
        # Everything that may be as near as these, or so near that it counts as 0, is to
        # be measured again.
        zero = self._search_units(rounding, squared_norm, squared.dtype)
        near, breaker = _at_least(near, zero), _at_least(breaker, zero)
        hits = spaces.get(squared.shape, bool)
        limit = _raise(breaker, 2 * error)[:, None]
        np.less_equal(squared[:, :first], limit, out=hits[:, :first])
        np.less_equal(squared[:, last:], limit, out=hits[:, last:])
        np.less_equal(inner, _raise(near, 2 * error)[:, None], out=hits[:, first:last])
        undecided = np.zeros(len(queries), dtype=bool)
        if squared.dtype == np.float32:
            undecided = ~np.isfinite(error)
            hits[undecided] = False
        row, column = _nonzero(hits)
        if squared.dtype == np.float32:
            undecided |= np.bincount(row, minlength=len(queries)) > _MAX_UNDECIDED
            row, column = row[~undecided[row]], column[~undecided[row]]
        exact = self._direct(queries, rounding, row, column)
        inside = (column >= first) & (column < last)
        radius = _row_min(exact, row, ~inside, len(queries))
        nearest = _row_min(exact, row, slice(None), len(queries))
        tied = exact == nearest[row]
        index = np.full(len(queries), len(self.order))
        np.minimum.at(index, row[tied], self._first_row(row[tied], column[tied], own))
        index[index == len(self.order)] = -1

        # Extenders that are surely nearer than the breaker, and those that may be.
        shift = self._search_units(radius, squared_norm, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            sure = (shift - error).astype(squared.dtype)
        maybe = _raise(shift.astype(squared.dtype), error)
        similarity = _count(inner < sure[:, None], counts)
        open_ = _count(inner <= maybe[:, None], counts) > similarity
        open_ &= ~undecided
        if open_.any():
            rows = np.flatnonzero(open_)
            window = inner[rows]
            window = (window >= sure[rows, None]) & (window <= maybe[rows, None])
            row, column = _nonzero(window)
            exact = self._direct(queries[rows], rounding[rows], row, column + first)
            nearer = np.where(exact < radius[rows][row], counts[column], 0)
            similarity[rows] += np.bincount(row, nearer, minlength=len(rows))
        if own is not None:
            # Among its copies an extender counted itself.
            point = self._point_of[own]
            among_copies = (point >= first) & (point < last) & (self.counts[point] > 1)
            similarity[among_copies & (radius > 0)] -= 1
        return similarity, nearest, index, undecided

    def _first_row(self, row, column, own):
        """Return the first row of `support` at each point that is not the query's."""
        rows = self.order[self._begin[column]]
        if own is not None:
            itself = np.flatnonzero(rows == own[row])
            rows[itself] = self.order[self._begin[column[itself]] + 1]
        return rows

    def _search_distances(self, queries, own, search, spaces):
        """Return |b|^2 - 2ab for all pairs, |a|^2, and a bound of the errors.

        All in search units. The query's own point stands at inf, if it has no copies.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            centred = (queries - self.center) / self.scale
            squared_norm = _squared_norm(centred)
            augmented = np.ones((len(centred), search.shape[1]), search.dtype)
            np.multiply(centred, -2, out=augmented[:, :-1], casting="same_kind")
            squared = np.matmul(
                augmented,
                search.T,
                out=spaces.get((len(queries), len(search)), search.dtype),
            )
            # Casting, m + 1 products and as many sums: fewer than 2 (m + 8) roundings
            # (eps is two of them) of terms that sum to less than (|a| + 1)^2.
            roundings = (search.shape[1] + 8) * np.finfo(search.dtype).eps
            error = roundings * (np.sqrt(squared_norm) + 1) ** 2
        beyond = ~(squared_norm < np.sqrt(np.finfo(search.dtype).max))
        if beyond.any():
            # Out of range: nothing is known, so everything is to be measured.
            squared[beyond] = 0.0
            error[beyond] = np.inf
        if own is not None:
            point = self._point_of[own]
            alone = np.flatnonzero(self.counts[point] == 1)
            squared[alone, point[alone]] = np.inf
        return squared, squared_norm, error

    def rounding(self, queries):
        """Return the squared distance up to which each query equals a point."""
        with np.errstate(over="ignore"):
            lengths = np.sqrt(_squared_norm(queries.astype(np.float64, copy=False)))
            lengths += self._typical_length
            return (_ROUNDING * lengths) ** 2

    def _search_units(self, squared, squared_norm, dtype):
        """Turn squared distances into what the search has in their place."""
        with np.errstate(over="ignore", invalid="ignore"):
            return (squared / self.scale**2 - squared_norm).astype(dtype)

    def _direct(self, queries, rounding, row, column):
        """Measure squared distances of pairs by direct difference in float64."""
        squared = np.empty(len(row))
        for part in _blocks(len(row), queries.shape[1]):
            squared[part] = _squared_norm(
                queries[row[part]] - self.points[column[part]]
            )
        squared[np.isfinite(squared) & (squared <= rounding[row])] = 0.0
        return squared

    def kneighbors(self, queries, n_neighbors, own=None):
        """Find the nearest training points.

        Parameters
        ----------
        queries : ndarray of shape (n_queries, n_dimensions), dtype=float64
            Representations of the queries.
        n_neighbors : int
            Number of neighbours, at most the number of other training points.
        own : ndarray of shape (n_queries,), default=None
            Row of each query in `support`, left out of its own neighbours.

        Returns
        -------
        distances : ndarray of shape (n_queries, n_neighbors), dtype=float64
            Ascending L2 distances.
        indices : ndarray of shape (n_queries, n_neighbors), dtype=int64
            Rows in `support`; points at the same distance stand in row order.
        """
        distances = np.empty((len(queries), n_neighbors))
        indices = np.empty((len(queries), n_neighbors), dtype=np.int64)

        spaces = _Spaces()

        def find(rows):
            left_out = None if own is None else own[rows]
            squared, squared_norm, error = self._search_distances(
                queries[rows], left_out, self._search32, spaces
            )
            # As many points as neighbours are enough, whatever copies they have.
            k = min(n_neighbors, squared.shape[1])
            kth = np.partition(squared, k - 1, axis=1)[:, k - 1]
            rounding = self.rounding(queries[rows])
            zero = self._search_units(rounding, squared_norm, kth.dtype)
            kth = np.minimum(np.maximum(kth, zero), np.finfo(kth.dtype).max)
            row, column = _nonzero(squared <= _raise(kth, 2 * error)[:, None])
            exact = self._direct(queries[rows], rounding, row, column)
            # Each point stands for its copies, one more than can be needed.
            copies = np.minimum(self.counts[column], n_neighbors + 1)
            offset = np.arange(copies.sum()) - np.repeat(
                np.cumsum(copies) - copies, copies
            )
            original = self.order[np.repeat(self._begin[column], copies) + offset]
            row, exact = np.repeat(row, copies), np.repeat(exact, copies)
            if left_out is not None:
                others = original != left_out[row]
                row, exact, original = row[others], exact[others], original[others]
            best = np.lexsort((original, exact, row))
            # Every row has at least n_neighbors candidates; its first ones stay.
            begin = np.searchsorted(row[best], np.arange(len(rows)))
            best = best[begin[:, None] + np.arange(n_neighbors)]
            distances[rows] = np.sqrt(exact[best])
            indices[rows] = original[best]

        self._in_chunks(np.arange(len(queries)), find)
        return distances, indices


class _Spaces(threading.local):
    """Working space of a thread, so that a new block does not cost fresh memory."""

    def __init__(self):
        self.spaces = {}

    def get(self, shape, dtype):
        """Return an array without values. The next one of its dtype overlays it."""
        size = math.prod(shape)
        if dtype not in self.spaces or self.spaces[dtype].size < size:
            self.spaces[dtype] = np.empty(size, dtype)
        return self.spaces[dtype][:size].reshape(shape)


def _blocks(n_rows, n_columns):
    """Return slices of rows whose values fit into a processor's cache."""
    step = max(1, _CACHED_ENTRIES // n_columns)
    return [slice(start, start + step) for start in range(0, n_rows, step)]


def _number_copies(support, group):
    """Number the distinct points of each group, group after group.

    Returns the number of each row's point. Points keep the order of their first rows
    within a group; copies share a number.
    """
    by_group = np.argsort(group, kind="stable")
    number = np.empty(len(group), dtype=np.int64)
    number[by_group] = np.arange(len(group))
    # Copies share their first coordinate. If no two rows do, which is soon seen, there
    # are none.
    if len(np.unique(support[:, 0])) == len(support):
        return number
    # A negative zero equals a positive one, but not in its bits.
    rows = np.column_stack([group, support + 0.0]).astype(np.float64)
    bits = np.ascontiguousarray(rows).view(f"V{rows.itemsize * rows.shape[1]}").ravel()
    distinct, copy_of = np.unique(bits, return_inverse=True)
    # The smallest number among its copies stands for a point; then close the gaps.
    smallest = np.full(len(distinct), len(group))
    np.minimum.at(smallest, copy_of, number)
    return np.unique(smallest[copy_of], return_inverse=True)[1]


def cap_similarity(similarity, max_similarity):
    """Return q, at most `max_similarity` unless that is None."""
    if max_similarity is None:
        return similarity
    return np.minimum(similarity, max_similarity)


def _raise(value, error):
    """Return value + error below inf, so that a point left out (inf) never counts.

    Where there is no value (inf), nothing is within its error: -inf.
    """
    limit = np.finfo(value.dtype).max
    with np.errstate(over="ignore", invalid="ignore"):
        raised = np.minimum(value + error, limit).astype(value.dtype)
    return np.where(np.isposinf(value), -np.inf, raised).astype(value.dtype)


def _at_least(value, least):
    """Return the larger one, inf and -inf as they are: nothing is there."""
    least = np.fmin(least, np.finfo(value.dtype).max)
    return np.where(np.isfinite(value), np.fmax(value, least), value)


def _nonzero(mask):
    """Return row and column of the True entries, row by row.

    Searching the flat array is several times faster than `numpy.nonzero` in two
    dimensions.
    """
    return np.divmod(np.flatnonzero(mask), max(mask.shape[1], 1))


def _count(mask, counts):
    """Sum the counts of the True entries of each row."""
    if len(counts) and counts.max() > 1:
        return mask @ counts.astype(np.float64)
    # Faster than `numpy.count_nonzero`.
    return mask.view(np.uint8).sum(axis=1, dtype=np.uint32).astype(np.float64)


def _row_min(values, row, chosen, n_rows):
    """Return the smallest of the chosen values of each row, inf where there is none."""
    smallest = np.full(n_rows, np.inf)
    np.minimum.at(smallest, row[chosen], values[chosen])
    return smallest


def _squared_norm(vectors):
    # A sum over the last axis adds each row in the same order whatever the batch is;
    # a matrix product does not.
    with np.errstate(over="ignore"):
        return np.square(vectors).sum(axis=1)
