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

# Leading principal axes; one more holds the length of the rest. A multiple of 4 in all.
_N_AXES = 11
_CELL_POINTS = 64
# Queries for each task of a thread.
_TASK_QUERIES = 1024
# In search units, in which exemplars have length 1 at most. Beyond it float32 tells
# exemplars no longer apart, and exact search answers.
_TOO_FAR = 1e4
# Stands for infinity where the compiler may assume that there is none.
_FAR = 1e17


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
        leading = _leading_axes(rotated)
        cells = [
            cell
            for begin, end in zip(exact.starts[:-1], exact.starts[1:], strict=True)
            for cell in split_points(leading, np.arange(begin, end), _CELL_POINTS)
        ]
        sizes = np.array([len(cell) for cell in cells])
        begin = np.append(0, np.cumsum(sizes))
        flat = np.concatenate(cells)
        members = np.full((len(cells), _CELL_POINTS), -1)
        members[np.arange(_CELL_POINTS) < sizes[:, None]] = flat
        by_cell = leading[members].transpose(0, 2, 1)
        by_cell = np.where(members[:, None] >= 0, by_cell, np.float32(_FAR))
        rows = exact.order
        self._arrays = {
            "points": exact.points,
            "rotated": rotated.astype(np.float32),
            "counts": exact.counts,
            "first_row": rows[exact._begin],
            "second_row": rows[np.minimum(exact._begin + 1, len(rows) - 1)],
            "starts": exact.starts,
            "cell_starts": np.searchsorted(begin, exact.starts),
            "members": members,
            "leading": np.ascontiguousarray(by_cell),
            "low": _columns(np.minimum.reduceat(leading[flat], begin[:-1])),
            "high": _columns(np.maximum.reduceat(leading[flat], begin[:-1])),
            "scale": float(exact.scale**2),
            # m + 16 roundings of eps, twice as many as there are.
            "relative": 2 * (centred.shape[1] + 16) * float(np.finfo(np.float32).eps),
            **sum_tree(centred.shape[1]),
        }

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
        leading = _leading_axes(rotated)
        point = np.full(n_queries, -1)
        left_out = itself = point
        if own is not None:
            point = exact._point_of[own]
            itself = np.where(self._arrays["first_row"][point] == own, point, -1)
            left_out = np.where(exact.counts[point] == 1, point, -1)
        if candidates is None and self.index is not None:
            candidates = self.index.find(queries)
        if candidates is None:
            candidates = np.empty((n_queries, 0), dtype=np.int64)
        else:
            found = (candidates >= 0) & (candidates < len(exact.order))
            candidates = np.where(found, exact._point_of[candidates * found], -1)
        asked = {
            "points": np.ascontiguousarray(queries, dtype=np.float64),
            "rotated": rotated.astype(np.float32),
            "leading": leading,
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
        order = np.concatenate(split_points(leading, np.arange(n_queries), 16))
        order = order[np.argsort(predictions[order], kind="stable")]
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
    arguments = kernel.Index(**index), kernel.Queries(**asked)
    answers = kernel.Answers(**answers)
    tasks = [
        order[start : start + _TASK_QUERIES]
        for start in range(0, len(order), _TASK_QUERIES)
    ]

    def run(task):
        kernel.search(*arguments, task, candidates, answers)

    map_in_threads(run, tasks)


def load_kernel():
    """Import the compiled search; the first time on a machine it is compiled."""
    import sys

    if "sdm_sklearn._pruned_kernel" not in sys.modules:
        _logger.info(
            "Loading the compiled neighbour search. The first time on a machine this "
            "takes some seconds."
        )
    from sdm_sklearn import _pruned_kernel

    return _pruned_kernel


def _leading_axes(rotated):
    leading = np.zeros((len(rotated), _N_AXES + 1), dtype=np.float32)
    n_axes = min(_N_AXES, rotated.shape[1])
    leading[:, :n_axes] = rotated[:, :n_axes]
    # The lengths of the rest differ by no more than the points do.
    leading[:, n_axes] = np.sqrt(_squared_norm(rotated[:, n_axes:]))
    return leading


def _columns(values):
    return np.ascontiguousarray(values.T)


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


def split_points(values, rows, size):
    """Cut rows of near values into parts of at most `size`, half by half.

    Parameters
    ----------
    values : ndarray of shape (n_samples, n_axes)
        Coordinates.
    rows : ndarray of int
        Rows to cut.
    size : int
        Largest size of a part; all but few have it.

    Returns
    -------
    parts : list of ndarray
    """
    parts, stack = [], [rows]
    while stack:
        rows = stack.pop()
        if len(rows) <= size:
            if len(rows):
                parts.append(rows)
            continue
        part = values[rows]
        axis = np.argmax(part.var(axis=0))
        half = -(-len(rows) // (2 * size)) * size
        order = np.argpartition(part[:, axis], half)
        stack += [rows[order[half:]], rows[order[:half]]]
    return parts
