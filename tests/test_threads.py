"""Blocks in threads: same results, limits restored, errors passed on."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from sdm_sklearn import _threads
from sdm_sklearn._threads import map_in_threads, one_blas_thread


def blas_threads():
    # Of the libraries that were there when the limiter first looked: NumPy's.
    libraries = _threads._controller().select(user_api="blas").info()
    return [library["num_threads"] for library in libraries]


@pytest.fixture(params=[1, 2, 5])
def n_threads(request, monkeypatch):
    monkeypatch.setattr(_threads, "_openmp_effective_n_threads", lambda: request.param)
    return request.param


def test_results_stand_in_order(n_threads):
    assert map_in_threads(lambda i: i * i, list(range(20))) == [
        i * i for i in range(20)
    ]
    assert map_in_threads(abs, []) == []


def test_blas_has_one_thread_inside_and_its_own_number_after(n_threads):
    with threadpool_limits(3, user_api="blas"):
        before = blas_threads()
        inside = map_in_threads(lambda _: blas_threads(), [0, 1])
        assert blas_threads() == before
    assert all(count == 1 for counts in inside for count in counts)


def test_overlapping_callers_restore_the_limits(monkeypatch):
    monkeypatch.setattr(_threads, "_openmp_effective_n_threads", lambda: 2)
    inside, go_on = threading.Barrier(2), threading.Event()
    before = blas_threads()

    def first(item):
        if item == 0:
            inside.wait(10)
            go_on.wait(10)

    caller = threading.Thread(target=map_in_threads, args=(first, [0, 1]))
    caller.start()
    inside.wait(10)
    # The second caller begins and ends while the first one is at work.
    map_in_threads(lambda item: item, [0, 1])
    go_on.set()
    caller.join(10)
    assert blas_threads() == before


def test_the_last_that_leaves_restores_the_limit():
    with threadpool_limits(3, user_api="blas"):
        before = blas_threads()
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert all(count == 1 for count in blas_threads())
        second.__exit__(None, None, None)
        assert blas_threads() == before


def test_an_error_is_passed_on_and_later_items_are_left_out(n_threads):
    begun = []

    def fail(item):
        begun.append(item)
        raise ValueError(f"item {item}")

    before = blas_threads()
    with pytest.raises(ValueError, match="item 0"):
        map_in_threads(fail, list(range(1000)))
    assert len(begun) < 1000
    assert blas_threads() == before


def test_a_search_is_the_same_in_one_thread_and_in_many(monkeypatch):
    from sdm_sklearn import _neighbors

    monkeypatch.setattr(_neighbors, "_BLOCK_ENTRIES", 1000)
    monkeypatch.setattr(_neighbors, "_ONE_THREAD_ENTRIES", 100)
    random = np.random.RandomState(0)
    support, y = random.randn(200, 5), random.randint(3, size=200)
    index = _neighbors.ExactNeighbors(support, y, random.permutation(y), 3)
    queries, codes = random.randn(300, 5), random.randint(3, size=300)
    results = []
    for count in (1, 4):
        monkeypatch.setattr(_threads, "_openmp_effective_n_threads", lambda c=count: c)
        results.append([*index.query(queries, codes), *index.kneighbors(queries, 7)])
    for one, many in zip(*results, strict=True):
        np.testing.assert_array_equal(one, many)
