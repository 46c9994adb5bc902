import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import pdist

from sdm_sklearn import _linear
from sdm_sklearn._linear import Adaptor, fit_standardization


def make_adaptor(n_features, n_filters, n_classes, seed=0):
    random = np.random.RandomState(seed)
    return Adaptor(
        center=random.randn(n_features),
        scale=random.rand(n_features) + 0.5,
        filters=random.randn(n_filters, n_features),
        filter_bias=random.randn(n_filters),
        weights=random.randn(n_classes, n_filters),
        bias=random.randn(n_classes),
    )


@pytest.mark.parametrize("shape", [(5, 3, 2), (5, 5, 3), (4, 9, 2)])
def test_by_definition(shape):
    adaptor = make_adaptor(*shape)
    X = np.random.RandomState(1).randn(30, shape[0])
    hidden = (X - adaptor.center) / adaptor.scale @ adaptor.filters.T
    hidden += adaptor.filter_bias
    coordinates, logits = adaptor.projection().project(X)
    assert_allclose(adaptor.transform(X), hidden, rtol=1e-12)
    assert_allclose(logits, hidden @ adaptor.weights.T + adaptor.bias, rtol=1e-10)
    assert coordinates.shape == (30, min(shape[:2]))
    assert_allclose(pdist(coordinates), pdist(hidden), rtol=1e-12)


@given(st.integers(0, 10**6), st.sampled_from([1, 7, 64, 384, 577]), st.integers(1, 70))
def test_rows_have_the_same_bits_in_any_batch(seed, n_features, n_filters):
    random = np.random.RandomState(seed)
    adaptor = make_adaptor(n_features, n_filters, 3, seed)
    X = random.randn(random.randint(1, 200), n_features)
    rows = random.permutation(len(X))[: random.randint(1, len(X) + 1)]
    all_rows = adaptor.projection().project(X)
    for part, whole in zip(
        adaptor.projection().project(X, rows), all_rows, strict=True
    ):
        assert_array_equal(part, whole[rows])
    for part, whole in zip(
        adaptor.projection().project(X[rows[:1]]), all_rows, strict=True
    ):
        assert_array_equal(part, whole[rows[:1]])


@pytest.mark.parametrize("n_filters", [2, 14, 64, 300])
def test_one_row_has_the_bits_it_has_among_thousands(n_filters):
    # The BLAS takes other kernels for small products than for large ones, and threads
    # for those.
    adaptor = make_adaptor(384, n_filters, 3)
    X = np.random.RandomState(1).randn(3000, 384)
    for all_rows, project in (
        (adaptor.transform(X), adaptor.transform),
        (
            np.hstack(adaptor.projection().project(X)),
            lambda part: np.hstack(adaptor.projection().project(part)),
        ),
    ):
        for rows in ([0], [2999], [1500], np.arange(239, 2000), np.arange(50)[::-1]):
            assert_array_equal(project(X[rows]), all_rows[rows])


def test_chunks_do_not_change_the_result(monkeypatch):
    adaptor = make_adaptor(6, 4, 2)
    X = np.random.RandomState(0).randn(100, 6)
    expected = adaptor.projection().project(X)
    monkeypatch.setattr(_linear, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(_linear, "_THREAD_ROWS", 7)
    for a, b in zip(adaptor.projection().project(X), expected, strict=True):
        assert_array_equal(a, b)
    for mode in ("global", "feature"):
        center, scale = fit_standardization(X, np.arange(100), mode)
        axis = None if mode == "global" else 0
        assert_allclose(center, np.broadcast_to(X.mean(axis=axis), 6), atol=1e-15)
        spread = np.square(X - X.mean(axis=axis)).mean(axis=axis)
        assert_allclose(scale, np.broadcast_to(np.sqrt(spread), 6))


@pytest.mark.parametrize("mode", ["global", "feature"])
def test_standardization_does_not_overflow_or_cancel(mode):
    X = np.random.RandomState(0).randn(5000, 3)
    half = (X * 1000 + 30000).astype(np.float16)  # squares overflow float16
    center, scale = fit_standardization(half, np.arange(5000), mode)
    assert_allclose(center, 30000, rtol=0.01)
    assert_allclose(scale, 1000, rtol=0.05)
    shifted = fit_standardization(X + 1e8, np.arange(5000), mode)[1]
    assert_allclose(
        shifted, fit_standardization(X, np.arange(5000), mode)[1], rtol=1e-6
    )


@pytest.mark.parametrize("mode", ["global", "feature", False])
def test_constant_features_count_as_scale_1(mode):
    X = np.full((50, 2), 0.1)
    center, scale = fit_standardization(X, np.arange(50), mode)
    assert_array_equal(scale, [1, 1])
    assert_allclose(center, 0.0 if mode is False else 0.1)


@pytest.mark.parametrize("mode", ["global", "feature"])
def test_squares_that_overflow_are_named(mode):
    with pytest.raises(ValueError, match="their squares overflow"):
        fit_standardization(np.array([[1e200], [-1e200]]), np.arange(2), mode)


def test_only_the_given_rows_count():
    X = np.array([[1.0], [3.0], [1000.0]])
    center, scale = fit_standardization(X, np.array([0, 1]), "feature")
    assert (center, scale) == ([2], [1])
