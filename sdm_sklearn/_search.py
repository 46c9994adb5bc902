"""Which search answers, and what the pruned one starts from."""

import logging
import threading

import numpy as np
from sklearn.base import clone

from sdm_sklearn._neighbors import ExactNeighbors
from sdm_sklearn._pruned import PrunedNeighbors

_logger = logging.getLogger("sdm_sklearn")

# Exemplars from which on "auto" is the pruned search. See docs/benchmarks/scale.rst.
_CROSSOVER = 20_000
# Neighbours that an approximate index is asked for.
_N_CANDIDATES = 15
# NN-descent improves the graph of the last epoch in this many rounds.
_WARM_ROUNDS = 1
# numba's threads belong to the process, and one of its threading layers aborts when two
# threads use them at a time.
_NUMBA_LOCK = threading.Lock()


def make_search(neighbors, support, labels, predictions, n_classes):
    """Build the search among some exemplars.

    Parameters
    ----------
    neighbors : {"auto", "exact", "pruned", "nndescent"} or object
        See :class:`~sdm_sklearn.SDMClassifier`. An object is cloned and fitted.
    support, labels, predictions, n_classes
        See :class:`~sdm_sklearn._neighbors.ExactNeighbors`.

    Returns
    -------
    search : ExactNeighbors or PrunedNeighbors
    """
    arguments = (support, labels, predictions, n_classes)
    if isinstance(neighbors, str):
        if neighbors == "exact" or (neighbors == "auto" and len(support) < _CROSSOVER):
            return ExactNeighbors(*arguments)
        return PrunedNeighbors(*arguments)
    return PrunedNeighbors(*arguments, CandidateIndex(neighbors, support))


class CandidateIndex:
    """An index of the user's that proposes neighbours.

    Parameters
    ----------
    index : object
        With ``fit(X)`` and ``kneighbors(X, n_neighbors, return_distance)``.
    support : ndarray of shape (n_support, n_dimensions)
        Representations of the training points, given to the index in float32.
    """

    def __init__(self, index, support):
        self.index = clone(index, safe=False)
        self.n_support = len(support)
        self.index.fit(np.ascontiguousarray(support, dtype=np.float32))

    def find(self, queries):
        """Return rows of the support, -1 where the index gave none that there is.

        Raises
        ------
        ValueError
            If the index returns something else than a row of integers per query.
        """
        rows = np.asarray(
            self.index.kneighbors(
                np.ascontiguousarray(queries, dtype=np.float32),
                n_neighbors=min(_N_CANDIDATES, self.n_support),
                return_distance=False,
            )
        )
        if rows.ndim != 2 or len(rows) != len(queries) or rows.dtype.kind not in "iu":
            raise ValueError(
                f"neighbors={self.index!r}: kneighbors(X, n_neighbors, "
                "return_distance=False) must return an array of integers, with a row "
                f"for each of the {len(queries)} queries. Got shape {rows.shape} and "
                f"dtype {rows.dtype} instead."
            )
        inside = (rows >= 0) & (rows < self.n_support)
        return np.where(inside, rows, -1).astype(np.int64)


class NNDescentGraph:
    """Neighbours of the training points by NN-descent, improved epoch after epoch.

    The adaptor moves little between epochs, so the last graph is a good start.
    """

    def __init__(self):
        self._neighbors = None

    def find(self, support):
        """Return rows of probable neighbours of each row, -1 where there is none."""
        support = np.ascontiguousarray(support, dtype=np.float32)
        if len(support) < 4 * _N_CANDIDATES:
            return np.empty((len(support), 0), dtype=np.int64)
        with _NUMBA_LOCK:
            self._neighbors = _descend(support, self._neighbors)
        return self._neighbors.astype(np.int64)


def _descend(support, start):
    import sys

    if "pynndescent" not in sys.modules:
        _logger.info(
            'neighbors="nndescent": NN-descent is compiled in every process that uses '
            'it, which takes about a minute. neighbors="auto" needs no such time.'
        )
    import numba
    import pynndescent

    n_threads = numba.get_num_threads()
    try:
        index = pynndescent.NNDescent(
            support,
            n_neighbors=_N_CANDIDATES,
            init_graph=start,
            n_iters=None if start is None else _WARM_ROUNDS,
            random_state=0,
        )
    finally:
        numba.set_num_threads(n_threads)
    # Of the graph itself; `neighbor_graph` would put each point among its neighbours.
    return index._neighbor_graph[0]
