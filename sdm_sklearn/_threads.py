"""Blocks of array work in threads, each with a BLAS of one thread."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from threadpoolctl import ThreadpoolController


def count_threads():
    """Return how many threads OpenMP may use."""
    return _openmp_effective_n_threads()


def map_in_threads(function, items):
    """Call `function` on every item, in as many threads as OpenMP may use.

    Products of two blocks gain little from a BLAS of many threads, which wait for each
    other, and what follows a product gains nothing. So each thread takes whole blocks,
    and the BLAS has one thread.

    Parameters
    ----------
    function : callable
        Takes an item. It should spend its time in NumPy.
    items : list
        One item is done at once, in the thread of the caller.

    Returns
    -------
    results : list
        In the order of the items.
    """
    n_threads = min(len(items), count_threads())
    with one_blas_thread():
        if n_threads < 2:
            return [function(item) for item in items]
        with ThreadPoolExecutor(n_threads) as pool:
            # An error or an interrupt cancels the items that have not begun.
            return list(pool.map(function, items))


@contextmanager
def one_blas_thread():
    """Let the BLAS of NumPy and SciPy use one thread, whoever else asks for it.

    Threads of one process share the number. So the first that enters sets it, and the
    last that leaves restores it; each by itself would restore what it found, which may
    be the other's.
    """
    global _n_inside, _limits
    with _lock:
        if _n_inside == 0:
            _limits = _controller().limit(limits=1, user_api="blas")
        _n_inside += 1
    try:
        yield
    finally:
        with _lock:
            _n_inside -= 1
            if _n_inside == 0:
                _limits.restore_original_limits()


_lock = threading.Lock()
_n_inside = 0
_limits: Any = None


@functools.cache
def _controller():
    # Made once: looking for the libraries takes milliseconds.
    return ThreadpoolController()
