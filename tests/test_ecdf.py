import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from sdm_sklearn._ecdf import dkw_epsilon, evaluate_distance, fit_class_ecdf


def test_by_hand():
    ecdf = fit_class_ecdf(
        nearest_distance=np.array([3.0, 1, 2, 5, 4, 9]),
        y=np.array([0, 0, 0, 1, 1, 1]),
        similarity=np.array([1, 2, 1, 1, 1, 0]),  # the last point has no support
        n_classes=2,
    )
    assert_array_equal(ecdf[0], [1, 2, 3])
    assert_array_equal(ecdf[1], [4, 5])
    # 1 - #{values < x} / n for each class, then the smaller one.
    x = np.array([0.0, 1, 1.5, 2, 3, 3.1, 9])
    assert_allclose(evaluate_distance(x, ecdf), [1, 1, 2 / 3, 2 / 3, 1 / 3, 0, 0])


def test_a_class_without_points_gives_0():
    ecdf = fit_class_ecdf(np.ones(2), np.zeros(2), np.ones(2), 2)
    assert_array_equal(evaluate_distance(np.zeros(3), ecdf), np.zeros(3))


def test_labels_of_no_class_do_not_count():
    ecdf = fit_class_ecdf(np.arange(4.0), np.array([0, 1, -1, 7]), np.ones(4), 2)
    assert [len(values) for values in ecdf] == [1, 1]


values = hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(0, 100))


@given(values, values, values)
def test_laws(first, second, x):
    ecdf = [np.sort(first), np.sort(second)]
    d = evaluate_distance(x, ecdf)
    expected = [min(1 - (v < t).sum() / len(v) for v in ecdf) for t in x]
    assert_allclose(d, expected, atol=1e-15)
    assert (np.diff(d[np.argsort(x)]) <= 0).all()  # farther never counts as nearer
    assert evaluate_distance(np.array([0.0]), ecdf) == 1
    beyond = max(first.max(), second.max()) + 1
    assert evaluate_distance(np.array([beyond, np.inf]), ecdf).tolist() == [0, 0]


def test_dkw_epsilon_by_hand():
    expected = np.sqrt(np.log(2 / 0.05) / 200)
    assert_allclose(dkw_epsilon(np.array([0, 100]), 0.95), [1, expected])
