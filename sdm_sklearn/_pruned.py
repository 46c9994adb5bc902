"""Search that rules points out before it measures: the answers of exact search, sooner.

q counts the training points nearer than the nearest breaker. *Any* breaker bounds that
radius from above, and what lies beyond the bound need not be measured. The variance of
a trained adaptor lies in little more than n_classes - 1 principal axes, so distances
along the leading axes, which are never too large, rule out nearly all points. What is
left is measured by direct difference in float64, as
:class:`~sdm_sklearn._neighbors.ExactNeighbors` does.

Breakers to start from may come from any approximate index, which may miss whatever it
likes: a worse start makes the search slower and changes no answer. Hence q is never too
large, and no answer depends on the index, its seed, its threads or the batch.
"""

import logging

import numpy as np

from sdm_sklearn._neighbors import ExactNeighbors, _squared_norm
from sdm_sklearn._threads import map_in_threads

_logger = logging.getLogger("sdm_sklearn")

# Queries for each task of a thread, and of them those that reach about the same cells.
_TASK_QUERIES = 1024
_NEAR_QUERIES = 16
# In search units, in which exemplars have length 1 at most. Beyond it float32 tells
# exemplars no longer apart, and exact search answers.
_TOO_FAR = 1e4
# Leading coordinates are rounded to whole steps, up to the largest number of a byte.
_MAX_STEPS = 127


class PrunedNeighbors:
    """Nearest-exemplar search with the answers of `ExactNeighbors`.

    Parameters
    ----------
    support, labels, predictions, n_classes
        As for :class:`~sdm_sklearn._neighbors.ExactNeighbors`.
    index : CandidateIndex, default=None
        Where queries without candidates get them. None starts from the cells alone.
    """

    def __init__(self, support, labels, predictions, n_classes, index=None):
        self.exact = ExactNeighbors(support, labels, predictions, n_classes)
        self.index = index
        self._prepare_search()

    def __getstate__(self):
        # The cells follow from the points.
        return {"exact": self.exact, "index": self.index}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._prepare_search()

    def _prepare_search(self):
        exact = self.exact
        centred = (exact.points - exact.center) / exact.scale
        axes = np.linalg.eigh(centred.T @ centred)[1]
        self._axes = np.ascontiguousarray(axes[:, ::-1])
        rotated = centred @ self._axes
        kernel = load_kernel()
        leading = _leading_axes(rotated, kernel.N_LEADING)
        # From here on points stand cell by cell, within the same groups.
        position, begin = kernel.split_points(
            *map(_read_only, (leading, np.arange(len(leading)), exact.starts)),
            kernel.N_MEMBERS,
        )
        self._place = np.empty_like(position)
        self._place[position] = np.arange(len(position))
        # Where a cell has no more points its last one is repeated.
        member = begin[:-1, None] + np.arange(kernel.N_MEMBERS)
        place = position[np.minimum(member, begin[1:, None] - 1)]
        self._step = _choose_step(leading)
        cells = _in_steps(leading, self._step)[place]
        rows, row = exact.order, exact._begin[position]
        arrays = {
            "points": exact.points,
            "position": position,
            "rotated": rotated.astype(np.float32)[position],
            "counts": exact.counts[position],
            "first_row": rows[row],
            "second_row": rows[np.minimum(row + 1, len(rows) - 1)],
            "starts": exact.starts,
            "cell_starts": np.searchsorted(begin, exact.starts),
            "begin": begin,
            "leading": _columns(cells).reshape(len(cells), -1).astype(np.int8),
            "step": self._step,
            "low": _columns(cells.min(axis=1)),
            "high": _columns(cells.max(axis=1)),
            "scale": float(exact.scale**2),
            # m + 16 roundings of eps, twice as many as there are.
            "relative": 2 * (centred.shape[1] + 16) * float(np.finfo(np.float32).eps),
            **sum_tree(centred.shape[1]),
        }
        self._arrays = {name: _read_only(value) for name, value in arrays.items()}

    def query(self, queries, predictions, own=None, candidates=None):
        """Compute q, the nearest distance and the nearest training point.

        Parameters
        ----------
        queries, predictions, own
            As for :meth:`ExactNeighbors.query`.
        candidates : ndarray of shape (n_queries, n_candidates), default=None
            Rows of `support` that may be near each query, and -1 for none. They decide
            how long the search takes, and nothing else.

        Returns
        -------
        similarity, nearest_distance, nearest_index
            As of :meth:`ExactNeighbors.query`.
        """
        exact = self.exact
        n_queries = len(queries)
        with np.errstate(over="ignore", invalid="ignore"):
            centred = (queries - exact.center) / exact.scale
            lengths = np.sqrt(_squared_norm(centred))
        far = ~(lengths < _TOO_FAR)
        if far.any():
            return self._query_far(queries, predictions, own, candidates, far)
        if n_queries == 0:
            return np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64)
        rotated = centred @ self._axes
        kernel = load_kernel()
        leading = _leading_axes(rotated, kernel.N_LEADING)
        point = np.full(n_queries, -1)
        left_out = itself = point
        if own is not None:
            point = self._place[exact._point_of[own]]
            itself = np.where(self._arrays["first_row"][point] == own, point, -1)
            left_out = np.where(self._arrays["counts"][point] == 1, point, -1)
        if candidates is None and self.index is not None:
            candidates = self.index.find(queries)
        if candidates is None:
            candidates = np.empty((n_queries, 0), dtype=np.int64)
        else:
            found = (candidates >= 0) & (candidates < len(exact.order))
            places = self._place[exact._point_of[candidates * found]]
            candidates = np.where(found, places, -1)
        asked = {
            "points": np.ascontiguousarray(queries, dtype=np.float64),
            "rotated": rotated.astype(np.float32),
            "leading": _in_steps(leading, self._step),
            "codes": predictions.astype(np.int64),
            "own": point,
            "left_out": left_out,
            "itself": itself,
            "rounding": exact.rounding(queries),
            # A float32 coordinate is rounded by less than 1e-7 of its size.
            "delta": 1e-6 * (lengths + 1),
        }
        answers = {
            "similarity": np.zeros(n_queries),
            "breaker": np.full(n_queries, -1),
            "radius": np.full(n_queries, np.inf),
            "extender": np.full(n_queries, -1),
            "near": np.full(n_queries, np.inf),
        }
        order = np.argsort(predictions, kind="stable")
        starts = np.flatnonzero(np.diff(predictions[order], prepend=-1, append=-1))
        order = kernel.split_points(
            *map(_read_only, (leading, order, starts)), _NEAR_QUERIES
        )[0]
        _run(self._arrays, asked, order, candidates, answers)
        return answers["similarity"], *self._nearest(asked, answers)

    def _nearest(self, asked, answers):
        """The nearest extender or breaker, and at the same distance its first row."""
        rows = [
            np.where(
                chosen < 0,
                len(self.exact.order),
                np.where(
                    chosen == asked["itself"],
                    self._arrays["second_row"][chosen],
                    self._arrays["first_row"][chosen],
                ),
            )
            for chosen in (answers["extender"], answers["breaker"])
        ]
        nearest = np.minimum(answers["near"], answers["radius"])
        index = np.minimum(
            np.where(answers["near"] == nearest, rows[0], len(self.exact.order)),
            np.where(answers["radius"] == nearest, rows[1], len(self.exact.order)),
        )
        return np.sqrt(nearest), np.where(index < len(self.exact.order), index, -1)

    def _query_far(self, queries, predictions, own, candidates, far):
        answers = [np.zeros(len(far)), np.zeros(len(far)), np.zeros(len(far), np.int64)]
        for rows, query in ((far, self.exact.query), (~far, self.query)):
            if rows.any():
                arguments = [queries[rows], predictions[rows]]
                arguments.append(None if own is None else own[rows])
                if candidates is not None and rows is not far:
                    arguments.append(candidates[rows])
                for answer, found in zip(answers, query(*arguments), strict=True):
                    answer[rows] = found
        return tuple(answers)

    def kneighbors(self, queries, n_neighbors, own=None):
        """Find the nearest training points, as :meth:`ExactNeighbors.kneighbors`."""
        return self.exact.kneighbors(queries, n_neighbors, own)


def _run(index, asked, order, candidates, answers):
    """Answer the queries in tasks, one a thread."""
    kernel = load_kernel()
    asked = {name: _read_only(value) for name, value in asked.items()}
    arguments = kernel.Index(**index), kernel.Queries(**asked)
    order, candidates = _read_only(order), _read_only(candidates)
    answers = kernel.Answers(**answers)
    tasks = [
        order[start : start + _TASK_QUERIES]
        for start in range(0, len(order), _TASK_QUERIES)
    ]

    def run(task):
        kernel.search(*arguments, task, candidates, answers)

    map_in_threads(run, tasks)


def _read_only(value):
    """Return a view that the kernel cannot write to.

    To numba this is another type. With one type for all arrays, those of a model that
    is mapped from a file included, the kernel is compiled once.
    """
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def load_kernel():
    """Import the compiled search; the first time on a machine it is compiled."""
    import sys

    if "sdm_sklearn._pruned_kernel" not in sys.modules:
        _logger.info(
            "Loading the compiled neighbour search. The first time on a machine this "
            "takes up to a minute."
        )
    from sdm_sklearn import _pruned_kernel

    return _pruned_kernel


def _leading_axes(rotated, n_leading):
    """The coordinates along the leading axes, and the length of the rest."""
    leading = np.zeros((len(rotated), n_leading), dtype=np.float32)
    n_axes = min(n_leading - 1, rotated.shape[1])
    leading[:, :n_axes] = rotated[:, :n_axes]
    # The lengths of the rest differ by no more than the points do.
    leading[:, n_axes] = np.sqrt(_squared_norm(rotated[:, n_axes:]))
    return leading


def _choose_step(leading):
    """The unit in which coordinates are whole numbers of a byte.

    Two of all points but the farthest are at most 254 steps apart, whose square fits
    into 16 bits.
    """
    lengths = np.sqrt(_squared_norm(leading.astype(np.float64)))
    length = np.quantile(lengths, 0.99) or 1.0
    # Above what is 0 in float32.
    return max(float(length / _MAX_STEPS), 1e-30)


def _in_steps(leading, step):
    # What is cut off only brings points nearer to each other.
    with np.errstate(over="ignore"):
        steps = np.clip(np.rint(leading / step), -_MAX_STEPS, _MAX_STEPS)
    return steps.astype(np.int16)


def _columns(values):
    return np.ascontiguousarray(values.swapaxes(-2, -1))


def sum_tree(n):
    """Describe the tree of partial sums by which numpy adds `n` numbers.

    Parameters
    ----------
    n : int
        How many numbers.

    Returns
    -------
    tree : dict of ndarray
        "ends" of the leaves, of at most 128 numbers each, and "merges", how many inner
        nodes are complete after each leaf.
    """
    ends: list[int] = []
    merges: list[int] = []

    def visit(begin, size):
        if size <= 128:
            ends.append(begin + size)
            merges.append(0)
            return
        half = size // 2 - size // 2 % 8
        visit(begin, half)
        visit(begin + half, size - half)
        merges[-1] += 1

    visit(0, n)
    return {"ends": np.array(ends), "merges": np.array(merges)}
