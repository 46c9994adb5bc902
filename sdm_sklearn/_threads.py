"""Blocks of array work in threads, each with a BLAS of one thread."""

import functools
from concurrent.futures import ThreadPoolExecutor

from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from threadpoolctl import ThreadpoolController


def map_in_threads(function, items):
    """Call `function` on every item, in as many threads as OpenMP may use.

    Products of two blocks gain little from a BLAS of many threads, which wait for each
    other, and what follows a product gains nothing. So each thread takes whole blocks.

    Parameters
    ----------
    function : callable
        Takes an item. It should spend its time in NumPy.
    items : list
        A single one is left to the BLAS and its threads.

    Returns
    -------
    results : list
        In the order of the items.
    """
    n_threads = min(len(items), _openmp_effective_n_threads())
    if n_threads < 2:
        return [function(item) for item in items]
    with (
        _controller().limit(limits=1, user_api="blas"),
        ThreadPoolExecutor(n_threads) as pool,
    ):
        # An error or an interrupt cancels the items that have not begun.
        return list(pool.map(function, items))


@functools.cache
def _controller():
    # Made once: looking for the libraries takes milliseconds.
    return ThreadpoolController()
