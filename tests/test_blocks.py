import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sdm_sklearn import SDMClassifier, _adaptor, _linear, _neighbors, _validation
from sdm_sklearn._blocks import explained_memory_error, in_blocks
from sdm_sklearn._neighbors import ExactNeighbors
from tests.conftest import make_blobs

pytestmark = pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning")


@given(n=st.integers(0, 50), size=st.integers(1, 60), capacity=st.integers(1, 60))
def test_every_row_once_and_in_order_in_blocks_that_fit(n, size, capacity):
    done = []

    def work(block):
        if len(block) > capacity:
            raise MemoryError
        done.append(block)

    in_blocks(np.arange(n), size, work, "")
    assert_array_equal(np.concatenate([[], *done]), np.arange(n))
    assert all(0 < len(block) <= min(size, capacity) for block in done)


def test_not_even_one_row():
    def work(block):
        raise MemoryError("Unable to allocate 1 TiB")

    with pytest.raises(MemoryError, match="one row. Lower n_filters.") as caught:
        in_blocks(np.arange(9), 4, work, "Lower n_filters.")
    assert "1 TiB" in str(caught.value.__cause__)


def limited(function, n_rows):
    """Let a function run out of memory beyond that many rows of its argument."""

    def limited_function(self, queries, *args):
        if len(queries) > n_rows:
            raise MemoryError
        return function(self, queries, *args)

    return limited_function


@pytest.mark.parametrize("n_rows", [1, 7, 64])
def test_searches_shrink_to_the_same_answer(n_rows, monkeypatch):
    X, y = make_blobs(200, n_classes=3)
    X[100:110] = X[:10]
    index = ExactNeighbors(X, y, (y + (np.arange(200) % 9 == 0)) % 3, 3)
    own = np.arange(200)
    expected = [index.query(X, y, own), index.query(X + 0.1, y)]
    neighbors = index.kneighbors(X, 5, own)
    search = limited(ExactNeighbors._search_distances, n_rows)
    monkeypatch.setattr(ExactNeighbors, "_search_distances", search)
    for found, wanted in zip(
        [index.query(X, y, own), index.query(X + 0.1, y)], expected, strict=True
    ):
        for a, b in zip(found, wanted, strict=True):
            assert_array_equal(a, b)
    for a, b in zip(index.kneighbors(X, 5, own), neighbors, strict=True):
        assert_array_equal(a, b)


def test_a_search_that_does_not_fit_says_what_to_lower(fitted, monkeypatch):
    clf, X, _, _ = fitted
    search = limited(ExactNeighbors._search_distances, 0)
    monkeypatch.setattr(ExactNeighbors, "_search_distances", search)
    for call in (clf.signals, clf.kneighbors):
        with pytest.raises(MemoryError, match="among .* exemplars.*: lower n_filters"):
            call(X)


def test_products_shrink_to_the_same_answer(fitted, monkeypatch):
    clf, X, _, _ = fitted
    expected = clf.transform(X)
    standardize = _linear.standardize

    def limited_standardize(chunk, *args, **kwargs):
        if len(chunk) > limit:
            raise MemoryError
        return standardize(chunk, *args, **kwargs)

    monkeypatch.setattr(_linear, "standardize", limited_standardize)
    limit = 5
    assert_array_equal(clf.transform(X), expected)
    limit = 0
    with pytest.raises(MemoryError, match="Embeddings of 12 features and n_filters"):
        clf.transform(X)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 9 GiB"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_a_batch_that_does_not_fit_says_what_to_lower(error, blobs, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(_adaptor, "sdm_loss", fail)
    with pytest.raises(MemoryError, match="batch_size=100 .* n_filters=64.*: lower"):
        SDMClassifier(random_state=0).fit(*blobs)


def test_torch_really_says_so_on_a_cpu():
    with (
        pytest.raises(MemoryError, match="can't allocate memory.*Do less."),
        explained_memory_error("Do less."),
    ):
        torch.empty(2**60, dtype=torch.uint8)


def test_other_errors_pass():
    with (
        pytest.raises(RuntimeError, match="^mat1 and mat2"),
        explained_memory_error("Do less."),
    ):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_fit_and_predict_read_the_rows_block_by_block(tmp_path, monkeypatch):
    """A file on disk is never in memory as a whole, not even in its own dtype."""
    X, y = make_blobs(4000, n_features=1500)
    np.save(tmp_path / "X.npy", X.astype(np.float16))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    monkeypatch.setattr(_linear, "_CHUNK_ROWS", 64)
    monkeypatch.setattr(_linear, "_THREAD_ROWS", 32)
    monkeypatch.setattr(_validation, "_CHUNK_ROWS", 64)
    monkeypatch.setattr(_neighbors, "_BLOCK_ENTRIES", 2**16)
    clf = SDMClassifier(0.9, n_filters=8, n_restarts=1, max_epochs=2, random_state=0)
    clf.fit(mapped[:100], y[:100])  # what is imported on the way stays
    peaks = []
    for work in (
        lambda: clf.fit(mapped, y),
        lambda: clf.set_params(support_size=0.1).fit(mapped, y),
        lambda: clf.predict_selective(mapped),
        lambda: clf.predict_proba(mapped),
        lambda: clf.signals(mapped),
    ):
        tracemalloc.start()
        try:
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert max(peaks) < mapped.nbytes / 2, peaks
