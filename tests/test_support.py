"""Fewer exemplars than training rows."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.model_selection import GridSearchCV
from sklearn.utils._param_validation import InvalidParameterError

from sdm_sklearn import SDMClassifier
from sdm_sklearn._adaptor import measure_signals
from sdm_sklearn._checkpoint import Checkpoint
from sdm_sklearn._ecdf import evaluate_distance, fit_class_ecdf
from sdm_sklearn._linear import Adaptor
from sdm_sklearn._model import SDMModel
from sdm_sklearn._support import choose_exemplars, count_exemplars
from sdm_sklearn.plotting import ExemplarCardDisplay
from tests.conftest import fast, make_blobs

pytestmark = [
    pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning"),
    pytest.mark.filterwarnings("ignore::sdm_sklearn.ThinEvidenceWarning"),
]

X, CODES = make_blobs(400, n_classes=3, separation=4.0)
Y = np.array(["ant", "mole", "zebra"])[CODES]


def fit(**parameters):
    defaults = {"alpha": 0.7, "n_filters": 8, "n_restarts": 2, "max_epochs": 6}
    return fast(**(defaults | parameters)).fit(X[:300], Y[:300])


def assert_same_fit(first, second):
    assert first.history_ == second.history_
    assert_array_equal(first.support_indices_, second.support_indices_)
    for name, values in first.signals(X).items():
        assert_array_equal(values, second.signals(X)[name])


@pytest.mark.parametrize(
    ("support_size", "expected"),
    [(None, 10), (1.0, 10), (0.7, 7), (0.39, 3), (3, 3), (10, 10), (99, 10)],
)
def test_the_number_of_exemplars(support_size, expected):
    # 0.7 * 10 is a little less than 7 in floating point.
    assert count_exemplars(support_size, 10, 3) == expected


@pytest.mark.parametrize(("support_size", "n"), [(2, 2), (0.29, 2), (0.05, 0)])
def test_each_class_needs_an_exemplar(support_size, n):
    message = (
        f"support_size={support_size} makes {n} of the 10 training rows exemplars, and "
        "each of the 3 classes needs at least one: pass an int of at least 3, a larger "
        "share, or None"
    )
    with pytest.raises(ValueError, match=message):
        count_exemplars(support_size, 10, 3)


def test_as_many_exemplars_of_each_class():
    """Six, three and one: the classes take turns while they have rows."""
    y = np.array([0, 1, 0, 0, 2, 0, 1, 0, 0, 1])
    for size, expected in {
        3: [1, 1, 1],
        5: [2, 2, 1],
        7: [3, 3, 1],
        8: [4, 3, 1],
        10: [6, 3, 1],
    }.items():
        exemplars = choose_exemplars(y, size, np.random.RandomState(0))
        assert np.bincount(y[exemplars]).tolist() == expected


@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**31 - 1),
)
def test_a_draw_of_exemplars(counts, share, seed):
    y = np.random.RandomState(seed).permutation(np.repeat(range(len(counts)), counts))
    size = len(counts) + int(share * (len(y) - len(counts)))
    exemplars = choose_exemplars(y, size, np.random.RandomState(seed))
    assert_array_equal(exemplars, np.unique(exemplars))
    assert exemplars.max() < len(y)
    drawn = np.bincount(y[exemplars])
    assert drawn.sum() == size
    assert drawn.min() >= 1
    # No class has fewer than another by more than one, unless all of it is drawn.
    assert (drawn[drawn < np.array(counts)] >= drawn.max() - 1).all()
    again = choose_exemplars(y, size, np.random.RandomState(seed))
    assert_array_equal(exemplars, again)


def test_a_draw_is_uniform_within_a_class():
    y = np.arange(20) % 2
    random = np.random.RandomState(0)
    drawn = np.zeros(20)
    for _ in range(2000):
        drawn[choose_exemplars(y, 8, random)] += 1
    # Four of ten, 800 times of 2000, give or take five standard deviations.
    assert np.abs(drawn - 800).max() < 5 * np.sqrt(2000 * 0.4 * 0.6)


@pytest.mark.parametrize("max_similarity", [None, 3])
def test_signals_of_the_training_half(max_similarity):
    """By hand: a row is left out if and only if it is an exemplar itself."""
    random = np.random.RandomState(0)
    rows, y = make_blobs(160, n_features=5, n_classes=2, separation=3.0)
    rows[40:50] = rows[:10]  # copies, some of exemplars
    train, calibration = np.arange(100), np.arange(100, 160)
    means = np.array([rows[y == code].mean(axis=0) for code in (0, 1)])
    adaptor = Adaptor(
        np.zeros(5), np.ones(5), np.eye(5), np.zeros(5), means, np.zeros(2)
    )
    exemplars = np.sort(random.permutation(100)[:30])
    coordinates, logits = adaptor.projection().project(rows)
    prediction = logits.argmax(axis=1)
    similarity, nearest = np.empty(160), np.empty(160)
    for i in range(160):
        others = exemplars[exemplars != i]
        distances = np.sqrt(np.square(coordinates[others] - coordinates[i]).sum(axis=1))
        extends = (prediction[others] == prediction[i]) & (y[others] == prediction[i])
        radius = distances[~extends].min(initial=np.inf)
        similarity[i] = (distances < radius).sum()
        nearest[i] = distances.min()
    signals, _ = measure_signals(
        adaptor,
        rows,
        y,
        train,
        calibration,
        2,
        max_similarity,
        exemplars=exemplars,
    )
    assert signals.complete
    cap = np.inf if max_similarity is None else max_similarity
    assert_array_equal(signals.similarity, np.minimum(similarity[train], cap))
    assert_array_equal(
        signals.calibration_similarity, np.minimum(similarity[calibration], cap)
    )
    for half, found in (
        (train, signals.distance),
        (calibration, signals.calibration_distance),
    ):
        ecdf = fit_class_ecdf(nearest[half], y[half], similarity[half], 2)
        assert_array_equal(found, evaluate_distance(nearest[half], ecdf))


def test_all_rows_train_the_adaptor():
    """The first epoch knows no exemplars: with few or all, its losses are the same."""
    few, full = fit(support_size=0.2), fit()
    first = [record for record in few.history_ if record["epoch"] == 1]
    expected = [record for record in full.history_ if record["epoch"] == 1]
    for record, other in zip(first, expected, strict=True):
        assert record["training_loss"] == other["training_loss"]
        assert record["mean_similarity"] < other["mean_similarity"]
    assert few.history_ != full.history_


@pytest.mark.parametrize("support_size", [1.0, 150, 10_000, np.int64(150)])
def test_all_rows_as_exemplars_change_nothing(support_size):
    assert_same_fit(fit(support_size=support_size), fit())


def test_which_rows_are_exemplars():
    clf = fit(support_size=0.2, n_restarts=1)
    full = fit(n_restarts=1)
    for model in fit(support_size=0.2, ensemble=True)._models:
        assert [len(part) for part in model.support] == [30, 30, 30]
    assert len(clf.support_indices_) == 30
    assert (np.diff(clf.support_indices_) > 0).all()
    assert_array_equal(clf.calibration_indices_, full.calibration_indices_)
    assert np.isin(clf.support_indices_, full.support_indices_).all()
    support = clf._model.project(X[clf.support_indices_])[0]
    assert_array_equal(clf._model.support[0], support)
    codes = np.searchsorted(clf.classes_, Y[clf.support_indices_])
    assert_array_equal(clf._model.support[1], codes)
    assert np.isin(clf.signals(X).nearest_index, clf.support_indices_).all()


def test_neighbours_of_exemplars_and_of_other_training_rows():
    clf = fit(support_size=0.2)
    distances, rows = clf.kneighbors(n_neighbors=29)
    assert distances.shape == (30, 29)
    assert not (rows == clf.support_indices_[:, None]).any()
    assert np.isin(rows, clf.support_indices_).all()
    with pytest.raises(ValueError, match="between 1 and 30, the number of exemplars"):
        clf.kneighbors(X, n_neighbors=31)
    # To predict, an exemplar is a row like any other.
    distances, rows = clf.kneighbors(X[clf.support_indices_], n_neighbors=1)
    assert_array_equal(distances[:, 0], 0)
    assert_array_equal(rows[:, 0], clf.support_indices_)


def test_given_splits_in_any_order():
    """Positions in the training half are not row numbers."""
    train, calibration = np.arange(299, 149, -1), np.arange(150)
    clf = fit(cv=[(train, calibration)], support_size=30, n_restarts=1)
    assert np.isin(clf.support_indices_, train).all()
    assert (np.diff(clf.support_indices_) < 0).all()
    codes = np.searchsorted(clf.classes_, Y[clf.support_indices_])
    assert_array_equal(clf._model.support[1], codes)


def test_workers_give_the_same_model():
    assert_same_fit(fit(support_size=0.3, n_jobs=2), fit(support_size=0.3))


@pytest.mark.parametrize("neighbors", ["pruned", "exact"])
def test_every_search_gives_the_same_model(neighbors):
    assert_same_fit(fit(support_size=0.3, neighbors=neighbors), fit(support_size=0.3))


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_fit_goes_on_where_it_stopped(tmp_path, monkeypatch):
    expected = fit(support_size=0.3)
    save, count = Checkpoint.save, 0

    def killing(self, record):
        nonlocal count
        count += 1
        save(self, record)
        if count == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", killing)
        with pytest.raises(Killed):
            fit(support_size=0.3, checkpoint_dir=tmp_path)
    kept = os.listdir(tmp_path)
    # Other exemplars are another fit; the same ones, said otherwise, are not.
    assert_same_fit(
        fit(support_size=0.4, checkpoint_dir=tmp_path), fit(support_size=0.4)
    )
    assert os.listdir(tmp_path) == kept
    assert_same_fit(fit(support_size=45, checkpoint_dir=tmp_path), expected)
    assert os.listdir(tmp_path) == []


def test_copies_of_the_model(tmp_path):
    clf = fit(support_size=0.2, ensemble=True)
    clf.save(tmp_path / "few.npz")
    fit(ensemble=True).save(tmp_path / "full.npz")
    assert os.path.getsize(tmp_path / "few.npz") < os.path.getsize(
        tmp_path / "full.npz"
    )
    for again in (
        SDMClassifier.load(tmp_path / "few.npz"),
        pickle.loads(pickle.dumps(clf)),
    ):
        assert again.support_size == 0.2
        assert_same_fit(again, clf)
        again.add_to_support(X[300:], Y[300:])
        assert len(again.support_indices_) == 130


def test_rows_added_join_the_exemplars():
    clf = fit(support_size=0.2)
    halves = clf.support_indices_, clf.calibration_indices_
    # A training row that is no exemplar may become one.
    others = np.setdiff1d(np.arange(300), np.concatenate(halves))[:5]
    added = np.concatenate([others, np.arange(300, 400)])
    clf.add_to_support(X[added], Y[added])
    assert_array_equal(clf.support_indices_[:30], halves[0])
    assert_array_equal(clf.support_indices_[30:], np.arange(300, 405))
    rows = np.concatenate([halves[0], added])
    expected = SDMModel.from_training(
        clf._model.adaptor, X, CODES, (rows, halves[1]), 3, None
    )
    assert_array_equal(clf._model.measured, expected.measured)
    assert clf.q_min_ == expected.find_region(0.7).q_min.min()


def test_certificate_drift_and_card():
    clf = fit(support_size=0.3, guarantee="certified", region="per_class", n_restarts=1)
    parts = clf.support_indices_, clf.calibration_indices_, clf.certify_indices_
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
    signals = clf.signals(X[:300])
    accepted = signals.accepted[clf.certify_indices_]
    n_accepted = clf.certificate_["n"][: len(clf.classes_)].sum()
    assert n_accepted == accepted.sum()
    assert clf.drift(X[300:]).pvalue > 0.01
    assert clf.drift(X[300:] + 5).pvalue < 1e-6
    card = ExemplarCardDisplay.from_estimator(clf, X[300:301], X[:300], Y[:300])
    distance, index = clf.kneighbors(X[300:301], n_neighbors=len(card.exemplars.index))
    assert_array_equal(card.exemplars.index, index[0])
    assert_array_equal(card.exemplars.distance, distance[0])
    assert_array_equal(card.exemplars.label, Y[index[0]])


def test_a_class_with_one_exemplar():
    """Its eCDF rests on its rows that are no exemplars."""
    clf = fit(support_size=3)
    assert sorted(Y[clf.support_indices_]) == ["ant", "mole", "zebra"]
    signals = clf.signals(X[300:])
    assert set(np.unique(signals.similarity)) <= {0.0, 1.0, 2.0, 3.0}
    assert not all(record["softmax_fallback"] for record in clf.history_)
    assert np.mean(clf.predict(X[300:]) == Y[300:]) > 0.75


def test_class_weights_are_those_of_all_training_rows():
    kept = np.r_[np.flatnonzero(CODES[:300] == 0)[:20], np.flatnonzero(CODES[:300])]
    weighted = fast(class_weight="balanced", support_size=0.2, max_epochs=1)
    full = fast(class_weight="balanced", max_epochs=1)
    weighted.fit(X[kept], Y[kept])
    full.fit(X[kept], Y[kept])
    loss = weighted.history_[0]["training_loss"]
    assert loss == full.history_[0]["training_loss"]


def test_in_a_search():
    search = GridSearchCV(
        fast(alpha=0.7, max_epochs=4), {"support_size": [0.2, None, 50]}, cv=2
    ).fit(X, Y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_fit_names_the_classes_left_out():
    with pytest.raises(ValueError, match="support_size=2 makes 2 of the 150 training"):
        fit(support_size=2)


@pytest.mark.parametrize("support_size", [0, -1, 0.0, 1.5, "half"])
def test_other_sizes_are_refused(support_size):
    with pytest.raises(InvalidParameterError, match="'support_size' parameter of SDM"):
        fit(support_size=support_size)
