import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.stats import binom, fisher_exact, ks_2samp
from sklearn.exceptions import NotFittedError

from sdm_sklearn import SDMClassifier
from sdm_sklearn._drift import _compare_shares, _compare_values
from tests.conftest import make_blobs

SIGNALS = ["similarity", "distance", "accepted"]


def test_each_signal_against_the_calibration_rows(fitted):
    clf, X, _, _ = fitted
    new, old = clf.signals(X[300:]), clf.signals(X[clf.calibration_indices_])
    result = clf.drift(X[300:])
    for name in ("similarity", "distance"):
        test = ks_2samp(new[name], old[name], method="asymp")
        assert result[name].statistic == test.statistic
        assert result[name].pvalue == test.pvalue
        assert result[name].mean == new[name].mean()
        assert result[name].reference_mean == old[name].mean()
    counts = [[s.accepted.sum(), (~s.accepted).sum()] for s in (new, old)]
    assert result.accepted.pvalue == fisher_exact(counts).pvalue
    assert result.accepted.statistic == new.accepted.mean() - old.accepted.mean()
    smallest = min(result[name].pvalue for name in SIGNALS)
    assert result.pvalue == min(1, 3 * smallest)
    assert set(result) == {"pvalue", *SIGNALS}


def test_nothing_is_no_evidence_of_no_drift(fitted):
    with pytest.raises(ValueError, match="needs the rows that came in. Got X=None"):
        fitted[0].drift(None)


def test_shift_is_seen_and_no_shift_is_not(fitted):
    clf, X, _, far = fitted
    assert clf.drift(X[300:]).pvalue > 0.01
    assert clf.drift(far).pvalue < 1e-4
    mixed = np.vstack([X[300:], far])
    assert clf.drift(mixed).pvalue < clf.drift(X[300:]).pvalue


def test_a_reference_of_the_same_rows_shows_nothing(fitted):
    clf, X, _, far = fitted
    result = clf.drift(far, reference=far)
    assert result.pvalue == 1
    assert all(result[name].statistic == 0 for name in SIGNALS)
    assert clf.drift(X[300:], reference=far).pvalue < 1e-4
    assert clf.drift(X[:2], reference=X[2:4]).pvalue > 0.1


@pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning")
def test_the_error_rate_is_kept_on_rows_of_the_same_kind():
    """Over fits, fewer alarms than a fair test at 5 % gives with probability .999."""
    alarms, n_fits, n_windows = 0, 10, 5
    for seed in range(n_fits):
        X, y = make_blobs(1000, n_classes=3, separation=3.0, seed=seed)
        clf = SDMClassifier(
            alpha=0.8, n_filters=8, n_restarts=1, max_epochs=8, random_state=seed
        ).fit(X[:500], y[:500])
        for window in np.array_split(np.arange(500, 1000), n_windows):
            alarms += clf.drift(X[window]).pvalue < 0.05
    assert alarms <= binom.ppf(0.999, n_fits * n_windows, 0.05)


def test_conservative_and_ensemble(blobs):
    X, y = blobs
    clf = SDMClassifier(
        alpha=0.8,
        n_filters=16,
        n_restarts=2,
        max_epochs=15,
        ensemble=True,
        random_state=0,
    ).fit(X, y)
    calibration = X[clf.calibration_indices_]
    best = copy.copy(clf)
    best._models, best._regions = clf._models[:1], clf._regions[:1]
    for conservative in (False, True):
        for model in (clf, best):
            model._rule = model._rule._replace(conservative=conservative)
        result = clf.drift(X + 0.5)
        assert result.accepted.mean == best.signals(X + 0.5).accepted.mean()
        expected = best.signals(calibration).accepted.mean()
        assert result.accepted.reference_mean == expected


def test_without_a_region_nothing_is_accepted_in_either(fitted):
    clf, X, _, _ = fitted
    clf = copy.copy(clf)
    with pytest.warns(UserWarning, match="No region"):
        clf.fit(X[:60], np.arange(60) % 2)
    result = clf.drift(X[300:])
    assert result.accepted.pvalue == 1
    assert result.accepted.mean == result.accepted.reference_mean == 0


def test_input_is_checked(fitted):
    clf, X, _, _ = fitted
    with pytest.raises(ValueError, match="features"):
        clf.drift(X[:, :5])
    with pytest.raises(ValueError, match="features"):
        clf.drift(X, reference=X[:, :5])
    for rows in ({"X": X[:1]}, {"X": X, "reference": X[:1]}):
        with pytest.raises(ValueError, match="at least 2 rows, .* Got 1"):
            clf.drift(**rows)
    with pytest.raises(NotFittedError):
        SDMClassifier().drift(X)


def test_nothing_is_changed_and_no_row_has_an_order(fitted):
    clf, X, _, _ = fitted
    before = copy.deepcopy(clf._models[0].measured)
    first, second = clf.drift(X[300:]), clf.drift(X[300:][::-1])
    for name in SIGNALS:
        assert first[name].pvalue == second[name].pvalue
    assert_array_equal(before, clf._models[0].measured)


values = st.lists(st.integers(0, 5), min_size=2, max_size=30).map(
    lambda v: np.array(v, dtype=float)
)


@given(new=values, old=values)
def test_comparisons_are_symmetric_and_bounded(new, old):
    for compare in (
        _compare_values,
        lambda a, b: _compare_shares(a > 2, b > 2),
    ):
        there, back = compare(new, old), compare(old, new)
        assert 0 <= there.pvalue <= 1
        assert abs(there.statistic) <= 1
        assert there.pvalue == pytest.approx(back.pvalue)
        assert compare(new, new).pvalue == pytest.approx(1)
