"""Rows added after fit, against a model that had them from the start."""

import copy
import functools
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sdm_sklearn import NoRegionWarning, SDMClassifier
from sdm_sklearn._model import SDMModel
from tests.conftest import make_blobs

pytestmark = [
    pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning"),
    pytest.mark.filterwarnings("ignore::sdm_sklearn.ThinEvidenceWarning"),
    # Some of the copies are calibration rows.
    pytest.mark.filterwarnings("ignore:.*rows added equal calibration rows"),
]

X, CODES = make_blobs(400, n_classes=3, separation=4.0)
# Copies in the support, and copies of those among the rows added.
X[10:20] = X[:10]
X[300:310] = X[:10]
NAMES = np.array(["ant", "mole", "zebra"])


@functools.cache
def fit_once(max_similarity):
    return fit(max_similarity=max_similarity)


def fit(**parameters):
    clf = SDMClassifier(
        alpha=0.7, n_filters=8, n_restarts=2, max_epochs=8, random_state=0, **parameters
    )
    return clf.fit(X[:300], NAMES[CODES[:300]])


def from_the_start(clf, labels):
    """Build the classifier's models, with the same weights, from all its rows."""
    codes = np.concatenate([CODES[:300], labels])
    halves = (clf.support_indices_, clf.calibration_indices_)
    return SDMModel.from_training(
        clf._models[0].adaptor, X, codes, halves, 3, clf.max_similarity
    )


def assert_same_signals(model, other):
    assert_array_equal(model.measured, other.measured)
    for values, expected in zip(
        model.calibration_rows, other.calibration_rows, strict=True
    ):
        assert_array_equal(values, expected)
    queries = np.vstack([X, X * 1.5])
    for alpha in (0.6, 0.7, 0.9):
        region, expected = model.find_region(alpha), other.find_region(alpha)
        assert_array_equal(region.q_min, expected.q_min)
        assert_array_equal(region.thresholds, expected.thresholds)
        signals = model.signals(model.measure(queries), region, alpha)
        wanted = other.signals(other.measure(queries), expected, alpha)
        for name in wanted:
            assert_array_equal(signals[name], wanted[name])


@settings(max_examples=15)
@given(
    labels=st.lists(st.integers(-1, 2), min_size=1, max_size=100),
    cuts=st.lists(st.integers(0, 100), max_size=3),
    max_similarity=st.sampled_from([None, 5]),
)
def test_adding_rows_equals_a_model_that_had_them(labels, cuts, max_similarity):
    """In one go or in several; -1 stands for rows of no class."""
    clf = copy.copy(fit_once(max_similarity))
    labels = np.array(labels)
    names = np.append(NAMES, "stranger")[labels]
    edges = sorted({0, len(labels), *(cut for cut in cuts if cut < len(labels))})
    for start, stop in pairwise(edges):
        clf.add_to_support(X[300 + start : 300 + stop], names[start:stop])
    expected = from_the_start(clf, labels)
    assert_same_signals(clf._models[0], expected)
    assert clf.q_min_ == expected.find_region(0.7).q_min.min()
    added = np.arange(300, 300 + len(labels))
    assert_array_equal(clf.support_indices_[-len(labels) :], added)


def test_labels_beyond_the_precision_of_floats_stay_apart():
    clf = SDMClassifier(alpha=0.7, n_filters=8, max_epochs=2, random_state=0)
    clf.fit(X[:300], np.array([2**53, 2**53 + 1, 2**53 + 2])[CODES[:300]])
    clf.add_to_support(X[:3] + 0.1, np.full(3, 2**53 + 1, dtype=np.uint64))
    assert_array_equal(clf._models[0].support[1][-3:], [1, 1, 1])


def test_every_member_of_an_ensemble_is_updated():
    clf = fit(ensemble=True)
    other = fit(ensemble=True)
    clf.add_to_support(X[300:], NAMES[CODES[300:]])
    for model, before, region in zip(
        clf._models, other._models, clf._regions, strict=True
    ):
        added = (model.support[0][-100:], model.support[1][-100:])
        assert_array_equal(added[0], before.project(X[300:])[0])
        assert_array_equal(added[1], CODES[300:])
        rebuilt = SDMModel(
            before.adaptor,
            before.projection,
            model.support,
            before.calibration,
            3,
            None,
        )
        assert_same_signals(model, rebuilt)
        assert_array_equal(region.q_min, rebuilt.find_region(0.7).q_min)


def test_copies_are_seen_by_every_member_of_an_ensemble():
    clf = fit(ensemble=True)
    only_the_others = np.setdiff1d(clf.support_indices_, np.arange(20))
    with pytest.warns(UserWarning, match="rows added equal calibration rows"):
        clf.add_to_support(X[only_the_others], NAMES[CODES[only_the_others]])


def test_a_warning_that_is_an_error_leaves_all_as_it_was():
    clf = fit()
    before = dict(vars(clf))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoRegionWarning)
        with pytest.raises(NoRegionWarning):
            # Strangers among all rows: no run is left.
            clf.add_to_support(X[:300] + 1e-6, ["stranger"] * 300)
    assert vars(clf) == before


def test_dates_are_no_numbers():
    clf = SDMClassifier(alpha=0.7, n_filters=8, max_epochs=2, random_state=0)
    clf.fit(X[:300], CODES[:300])
    with pytest.raises(ValueError, match="labels of the kind of the classes, such as"):
        clf.add_to_support(X[:2] + 0.1, np.array(["2026-01-01", "2026-01-02"], "M8[D]"))


def test_rows_added_can_only_bring_exemplars_nearer():
    clf = fit()
    before = clf.signals(X[350:])
    old = clf._models[0].measured
    clf.add_to_support(X[300:350], ["stranger"] * 50)
    after = clf.signals(X[350:])
    assert (after.nearest_distance <= before.nearest_distance).all()
    # Rows of no class break runs, and extend none.
    assert (after.similarity <= before.similarity).all()
    assert (clf._models[0].measured[0] <= old[0]).all()
