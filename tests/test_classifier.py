import copy
import pickle
import threading
import warnings

import joblib
import numpy as np
import pandas
import polars
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    PredefinedSplit,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sdm_sklearn
from sdm_sklearn import NoRegionWarning, SDMClassifier, predict_selective
from tests.conftest import fast, make_blobs

# Where a region is expected, tests ask for accepted rows; the warning's own tests come
# with pytest.warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sdm_sklearn.NoRegionWarning"),
    pytest.mark.filterwarnings("ignore::sdm_sklearn.ThinEvidenceWarning"),
]

METHODS = [
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "predict_selective",
    "signals",
    "score_samples",
    "transform",
    "kneighbors",
]


# Predictions --------------------------------------------------------------------------


def test_separable_classes_are_learnt_and_accepted(fitted):
    clf, X, y, far = fitted
    test = slice(300, None)
    assert clf.score(X[test], y[test]) > 0.95
    labels, accepted = clf.predict_selective(X[test], return_mask=True)
    assert accepted.mean() > 0.5
    assert (labels[accepted] == y[test][accepted]).mean() >= 0.95
    assert_array_equal(labels[accepted], clf.predict(X[test])[accepted])
    assert (labels[~accepted] == "rejected").all()


def test_far_rows_are_uniform_and_rejected(fitted):
    clf, _, _, far = fitted
    for scale in (1e-2, 1.0, 1e16, 1e26):
        signals = clf.signals(far * scale)
        assert (signals.distance == 0).all()
        assert not signals.accepted.any()
        proba = clf.predict_proba(far * scale)
        assert_allclose(proba, np.full(proba.shape, 1 / 3), atol=1e-12)
        # Uniform to all digits that matter, and still led by the prediction.
        assert_array_equal(clf.classes_[proba.argmax(axis=1)], clf.predict(far * scale))


def test_views_of_the_probabilities_agree(fitted):
    clf, X, _, far = fitted
    X = np.vstack([X, far])
    proba, log_proba = clf.predict_proba(X), clf.predict_log_proba(X)
    assert_allclose(proba.sum(axis=1), 1, rtol=1e-12)
    assert_allclose(np.exp(log_proba), proba)
    assert_allclose(clf.decision_function(X), log_proba)
    assert_array_equal(clf.classes_[proba.argmax(axis=1)], clf.predict(X))


def test_binary_decision_function_is_the_log_odds(blobs):
    X, y = blobs
    clf = fast().fit(X, y)
    far = np.vstack([X, X * 1e6])
    scores, log_proba = clf.decision_function(far), clf.predict_log_proba(far)
    assert_allclose(scores, log_proba[:, 1] - log_proba[:, 0])
    assert_array_equal((scores > 0).astype(int), clf.predict(far))


def test_signals_are_consistent(fitted):
    clf, X, y, far = fitted
    X = np.vstack([X, far])
    s = clf.signals(X)
    assert_array_equal(s.prediction, clf.predict(X))
    assert_allclose(s.probability, clf.predict_proba(X).max(axis=1), atol=1e-12)
    assert_array_equal(s.is_ood, s.similarity == 0)
    assert_array_equal(s.accepted, clf.predict_selective(X, return_mask=True)[1])
    assert_array_equal(
        s.logits.argmax(axis=1), np.searchsorted(clf.classes_, s.prediction)
    )
    assert s.effective_sample_size.shape == s.logits.shape == (len(X), 3)
    assert (s.lower_distance <= s.distance).all()
    assert (s.distance <= s.upper_distance).all()
    assert (s.lower_probability <= s.probability).all()
    assert (s.lower_accepted <= s.accepted).all()
    q_prime = np.minimum(s.similarity, (2 + s.similarity) ** s.probability)
    assert_allclose(s.rescaled_similarity, q_prime)
    thresholds = clf.thresholds_[np.searchsorted(clf.classes_, s.prediction)]
    expected = (q_prime >= clf.q_min_) & (s.probability >= thresholds) & ~s.is_ood
    assert_array_equal(s.accepted, expected)
    assert np.isin(s.nearest_index, clf.support_indices_).all()
    h = clf.transform(X)
    nearest = clf.transform(X[s.nearest_index])
    assert_allclose(np.linalg.norm(h - nearest, axis=1), s.nearest_distance, rtol=1e-9)
    assert_array_equal(clf.score_samples(X), -s.nearest_distance)


def test_alpha_at_predict_equals_a_fit_with_it(fitted):
    clf, X, y, _ = fitted
    for alpha in (0.6, 0.8, 0.9):
        other = clone(clf).set_params(alpha=alpha).fit(X[:300], y[:300])
        asked = clf.predict_selective(X, alpha=alpha, return_mask=True)
        expected = other.predict_selective(X, return_mask=True)
        for a, b in zip(asked, expected, strict=True):
            assert_array_equal(a, b)
        assert_array_equal(clf.signals(X, alpha=alpha).accepted, asked[1])
        assert asked[1].any()


def test_rows_have_the_same_answer_in_any_batch(fitted):
    clf, X, _, far = fitted
    X = np.vstack([X, far])
    order = np.random.RandomState(0).permutation(len(X))
    whole, shuffled = clf.signals(X), clf.signals(X[order])
    for name, value in whole.items():
        assert_array_equal(shuffled[name], value[order], err_msg=name)
    for row in range(0, len(X), 37):
        for name, value in clf.signals(X[[row]]).items():
            assert_array_equal(value, whole[name][[row]], err_msg=name)


def test_kneighbors(fitted):
    clf, X, _, _ = fitted
    h, support = clf.transform(X), clf.transform(X[clf.support_indices_])
    expected = np.linalg.norm(h[:, None] - support[None], axis=-1)
    distances, indices = clf.kneighbors(X, 3)
    assert_allclose(distances, np.sort(expected, axis=1)[:, :3], atol=1e-12)
    assert_array_equal(indices[:, 0], clf.signals(X).nearest_index)
    assert np.isin(indices, clf.support_indices_).all()
    assert_array_equal(clf.kneighbors(X, 3, return_distance=False), indices)
    distances, indices = clf.kneighbors(n_neighbors=2)
    assert indices.shape == (len(clf.support_indices_), 2)
    assert not (indices == clf.support_indices_[:, None]).any()
    assert (distances > 0).all()


@pytest.mark.parametrize("n_neighbors", [0, -1, 1000, 2.5, None, True])
def test_bad_n_neighbors(fitted, n_neighbors):
    clf, X, _, _ = fitted
    with pytest.raises(ValueError, match="n_neighbors must be an int between 1 and 1"):
        clf.kneighbors(X, n_neighbors)


def test_transform_and_feature_names_out(fitted):
    clf, X, _, _ = fitted
    assert clf.transform(X).shape == (len(X), 16)
    assert clf.get_feature_names_out()[0] == "sdmclassifier0"
    assert len(clf.get_feature_names_out()) == 16


@pytest.mark.parametrize(("library", "kind"), [("pandas", pandas), ("polars", polars)])
def test_set_output(fitted, library, kind):
    clf, X, _, _ = fitted
    clf = copy.copy(clf).set_output(transform=library)
    assert isinstance(clf.transform(X), kind.DataFrame)
    frame = clf.signals(X)
    assert isinstance(frame, kind.DataFrame)
    assert {
        "similarity",
        "accepted",
        "logits_ant",
        "effective_sample_size_zebra",
    } < set(frame.columns)
    assert len(frame) == len(X)


def test_signals_of_a_list(fitted):
    clf, X, _, _ = fitted
    clf = copy.copy(clf).set_output(transform="pandas")
    assert len(clf.signals(X[:3].tolist())) == 3


def test_signals_keep_the_index_of_a_frame(fitted):
    clf, X, _, _ = fitted
    clf = copy.copy(clf).set_output(transform="pandas")
    clf.n_features_in_ = X.shape[1]
    frame = pandas.DataFrame(X[:5], index=list("abcde"))
    assert list(clf.signals(frame).index) == list("abcde")


# Parameters ---------------------------------------------------------------------------


def test_defaults_and_constructor_store_arguments_untouched():
    alpha, random_state = np.float64(0.9), np.random.RandomState(3)
    clf = SDMClassifier(alpha, random_state=random_state)
    assert clf.alpha is alpha
    assert clf.random_state is random_state
    before = clf.get_params()
    clf.set_params(max_epochs=2).fit(*make_blobs(400))
    after = clf.get_params()
    assert {k: v for k, v in after.items() if k != "max_epochs"} == {
        k: v for k, v in before.items() if k != "max_epochs"
    }


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("n_filters", 0),
        ("n_restarts", 0),
        ("calibration_size", 1.0),
        ("cv", "half"),
        ("max_epochs", 0),
        ("patience", 0),
        ("learning_rate", 0),
        ("batch_size", 0),
        ("standardize", True),
        ("standardize", "rows"),
        ("neighbors", "sideways"),
        ("max_similarity", 0),
        ("class_weight", "heavy"),
        ("ensemble", "no"),
        ("conservative", "no"),
        ("device", 3),
        ("n_jobs", "all"),
        ("random_state", "seed"),
        ("alpha", "0.9"),
        ("reject_label", [1]),
    ],
)
def test_bad_parameters_are_named(parameter, value, blobs):
    with pytest.raises(
        ValueError, match=f"The '{parameter}' parameter of SDMClassifier"
    ):
        fast(**{parameter: value}).fit(*blobs)


@pytest.mark.parametrize("alpha", [0.5, 0.0, -1.0, 1.0, 1.5, np.nan])
def test_bad_alpha(alpha, blobs):
    with pytest.raises(
        ValueError, match="alpha must be an accuracy with 1/2 < alpha < 1"
    ):
        fast(alpha=alpha).fit(*blobs)


def test_parameters_take_effect(blobs):
    X, y = blobs
    base = fast().fit(X, y)
    assert base.transform(X).shape[1] == 16
    assert len(base.history_) <= 15
    assert {record["restart"] for record in base.history_} == {0}
    several = fast(n_restarts=3, patience=2).fit(X, y)
    assert {record["restart"] for record in several.history_} == {0, 1, 2}
    sizes = [
        len(fast(calibration_size=size).fit(X, y).calibration_indices_)
        for size in (0.25, 0.75)
    ]
    assert sizes == [int(0.25 * 150) * 2, int(0.75 * 150) * 2]
    assert fast(max_similarity=4).fit(X, y).signals(X).similarity.max() == 4
    for other in (
        {"learning_rate": 1e-3},
        {"batch_size": 20},
        {"standardize": False},
        {"standardize": "global"},
        {"random_state": 1},
        {"class_weight": {0: 5, 1: 1}},
    ):
        assert not np.array_equal(
            fast(**other).fit(X, y).transform(X), base.transform(X)
        )


def test_best_restart_has_the_lowest_loss(blobs):
    clf = fast(n_restarts=4).fit(*blobs)
    losses = {}
    for record in clf.history_:
        if not record["softmax_fallback"]:
            losses.setdefault(record["restart"], []).append(record["calibration_loss"])
    best = min(losses, key=lambda restart: min(losses[restart]))
    random = np.random.RandomState(0)
    from sdm_sklearn._splits import stratified_halves

    halves = [stratified_halves(blobs[1], 0.5, random) for _ in range(4)]
    assert_array_equal(clf.support_indices_, halves[best][0])
    assert_array_equal(clf.calibration_indices_, halves[best][1])


def test_class_weight_balanced_equals_its_dict(blobs):
    X, y = blobs
    keep = (y == 1) | (np.arange(len(y)) % 3 == 0)
    X, y = X[keep], y[keep]
    balanced = fast(class_weight="balanced").fit(X, y)
    counts = np.bincount(y[balanced.support_indices_])
    weights = dict(enumerate(counts.sum() / (2 * counts)))
    assert_array_equal(
        fast(class_weight=weights).fit(X, y).transform(X), balanced.transform(X)
    )


def test_conservative_lets_the_lower_band_decide(blobs):
    X, y = blobs
    plain, lower = (fast(conservative=c).fit(X, y) for c in (False, True))
    assert_array_equal(
        lower.predict_selective(X, return_mask=True)[1], plain.signals(X).lower_accepted
    )
    assert lower.signals(X).accepted.sum() < plain.signals(X).accepted.sum()


def test_ensemble_accepts_what_all_members_accept():
    X, y = make_blobs(600, separation=3.5, n_classes=3)
    splits = [
        (np.flatnonzero(fold != 0), np.flatnonzero(fold == 0))
        for fold in (np.arange(600) % 2, np.arange(600) // 2 % 2)
    ]
    together = fast(cv=splits, ensemble=True, alpha=0.8).fit(X, y)
    best = fast(cv=splits, alpha=0.8).fit(X, y)
    assert_array_equal(together.predict_proba(X), best.predict_proba(X))
    accepted = together.signals(X).accepted
    assert 0 < accepted.sum() < best.signals(X).accepted.sum()
    assert (accepted <= best.signals(X).accepted).all()
    at_other_alpha = together.predict_selective(X, alpha=0.7, return_mask=True)[1]
    assert not np.array_equal(at_other_alpha, accepted)
    for conservative in (False, True):
        together._rule = together._rule._replace(conservative=conservative)
        asked = together.predict_selective(X, return_mask=True)[1]
        assert_array_equal(asked, together.signals(X).accepted)
    assert asked.sum() < accepted.sum()


def test_a_member_without_a_region_is_told(blobs):
    # The second split leaves a class two calibration rows: no region at 0.9.
    X, y = blobs
    few = np.r_[np.flatnonzero(y == 0)[:50], np.flatnonzero(y == 1)[:2]]
    splits = [
        (np.arange(150), np.arange(150, 300)),
        (np.setdiff1d(np.arange(300), few), few),
    ]
    with pytest.warns(NoRegionWarning, match="No region"):
        clf = fast(cv=splits, ensemble=True).fit(X, y)
    assert clf.alpha_found_ < 0.9
    assert not clf.predict_selective(X, return_mask=True)[1].any()


def test_published_schedule_is_reachable(blobs):
    clf = fast(
        n_filters=1000, learning_rate=1e-5, weight_averaging=False, batch_size=50,
        max_epochs=3, patience=None, standardize="global",
    )  # fmt: skip
    with pytest.warns(NoRegionWarning):
        clf.fit(*blobs)
    assert len(clf.history_) == 3
    assert clf.transform(blobs[0]).shape[1] == 1000


# Splits -------------------------------------------------------------------------------


def test_cv_gives_the_halves(blobs):
    X, y = blobs
    fold = np.where(np.arange(300) < 200, -1, 0)
    expected = (np.arange(200), np.arange(200, 300))
    for cv in (PredefinedSplit(fold), [expected], [(fold == -1, fold == 0)]):
        clf = fast(cv=cv).fit(X, y)
        assert_array_equal(clf.support_indices_, expected[0])
        assert_array_equal(clf.calibration_indices_, expected[1])


def test_each_split_of_cv_is_initialised_n_restarts_times(blobs):
    clf = fast(cv=3, n_restarts=2, max_epochs=2).fit(*blobs)
    assert {record["restart"] for record in clf.history_} == set(range(6))
    assert len(clf.calibration_indices_) == 100


def test_cv_survives_a_pipeline(blobs):
    X, y = blobs
    pipe = make_pipeline(
        StandardScaler(), fast(cv=PredefinedSplit(np.arange(300) % 2 - 1))
    )
    assert_array_equal(pipe.fit(X, y)[-1].calibration_indices_, np.arange(1, 300, 2))


def test_a_predefined_split_of_other_length_is_named(blobs):
    message = "cv=PredefinedSplit tells the fold of 200 rows, but X has 300"
    with pytest.raises(ValueError, match=message):
        fast(cv=PredefinedSplit(np.arange(200) % 2 - 1)).fit(*blobs)


def test_a_splitter_that_needs_groups_is_named(blobs):
    with pytest.raises(
        ValueError, match="cv=GroupKFold needs groups.* pass its splits"
    ):
        fast(cv=GroupKFold(3)).fit(*blobs)


def test_cv_without_a_split(blobs):
    with pytest.raises(ValueError, match="cv gives no split: pass at least one pair"):
        fast(cv=[]).fit(*blobs)


@pytest.mark.parametrize("weight", [{0: 0, 1: 1}, {0: -1, 1: 1}, {0: np.inf, 1: 1}])
def test_bad_class_weights(weight, blobs):
    with pytest.raises(ValueError, match="class_weight must be positive and finite"):
        fast(class_weight=weight).fit(*blobs)


def test_overlapping_halves_are_refused(blobs):
    with pytest.raises(ValueError, match="cv puts 100 rows twice"):
        fast(cv=[(np.arange(200), np.arange(100, 300))]).fit(*blobs)


def test_a_fold_without_a_class_is_named():
    X, y = make_blobs(200)
    order = np.argsort(y)
    with pytest.raises(
        ValueError, match="Class 0 has 0 of its 100 rows in the training"
    ):
        fast(cv=KFold(2)).fit(X[order], y[order])


# Labels -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "marker"),
    [
        (np.array([0, 1]), -1),
        (np.array([-1, 1]), -2),
        (np.array([10, 20]), -1),
        (np.array([False, True]), -1),
        (np.array([1.0, 2.0]), -1),
        (np.array(["no", "yes"]), "rejected"),
        (np.array(["no", "yes"], dtype=object), "rejected"),
        (np.array([3, 200], dtype=np.uint8), -1),
        (np.array([b"no", b"yes"]).astype(str), "rejected"),
    ],
)
def test_labels_of_any_kind(names, marker, blobs):
    X, codes = blobs
    clf = fast().fit(X, names[codes])
    assert_array_equal(clf.classes_, names)
    assert clf.reject_label_ == marker
    reference = fast().fit(X, codes)
    assert_array_equal(clf.predict_proba(X), reference.predict_proba(X))
    assert_array_equal(clf.predict(X), names[reference.predict(X)])
    labels, accepted = clf.predict_selective(np.vstack([X, X * 1e5]), return_mask=True)
    assert accepted.any()
    assert all(label == marker for label in labels[~accepted].tolist())
    assert set(labels[accepted].tolist()) <= set(names.tolist())


@pytest.mark.parametrize(
    "make",
    [
        lambda y: pandas.Series(y).astype("Int64"),
        lambda y: pandas.Series(y.astype(bool)).astype("boolean"),
        lambda y: pandas.Series(np.array(["a", "b"])[y]),
        lambda y: pandas.Series(np.array(["a", "b"])[y]).astype("string"),
        lambda y: pandas.Series(np.array(["a", "b"])[y]).astype("category"),
        lambda y: polars.Series(np.array(["a", "b"])[y].tolist()),
        lambda y: polars.Series(y),
        lambda y: y.tolist(),
        lambda y: np.array(["a", "b"])[y].tolist(),
    ],
)
def test_label_containers(make, blobs):
    X, y = blobs
    clf = fast().fit(X, make(y))
    assert len(clf.classes_) == 2
    assert_array_equal(clf.predict_proba(X), fast().fit(X, y).predict_proba(X))
    clf.predict_selective(X)


def test_explicit_reject_label(blobs):
    X, y = blobs
    labels = fast(reject_label=99).fit(X, y).predict_selective(X * 1e5)
    assert (labels == 99).all()
    with pytest.raises(ValueError, match="reject_label=1 is one of the classes"):
        fast(reject_label=1).fit(X, y)


@pytest.mark.parametrize("missing", [None, np.nan, 3, pandas.NA])
def test_missing_or_mixed_labels(missing, blobs):
    X, codes = blobs
    y = np.array(["a", "b"], dtype=object)[codes]
    y[3] = missing
    with pytest.raises(
        ValueError, match="y must hold labels of one kind.* Got .* at 3"
    ):
        fast().fit(X, y)
    with pytest.raises(ValueError, match="y must hold labels of one kind"):
        fast().fit(X, y.tolist())


@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "int64[pyarrow]"])
def test_large_integers_of_nullable_dtypes_stay_apart(dtype, blobs):
    """Codes of SNOMED CT are that long, and float64 merges them."""
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow")
    X, codes = blobs
    names = np.array([900000000000000003, 900000000000000009])
    y = pandas.Series(names[codes]).astype(dtype)
    clf = fast().fit(X, y)
    assert clf.classes_.tolist() == names.tolist()
    clf.add_to_support(X[:5] + 0.1, y[:5])
    assert_array_equal(clf._models[0].support[1][-5:], codes[:5])
    y[3] = pandas.NA
    with pytest.raises(ValueError, match="none of them missing. Got None at 3"):
        fast().fit(X, y)


def test_nullable_bools_stay_bools(blobs):
    X, codes = blobs
    clf = fast().fit(X, pandas.Series(codes == 1, dtype="boolean"))
    assert clf.classes_.dtype == bool


def test_missing_labels_of_polars(blobs):
    polars = pytest.importorskip("polars")
    X, codes = blobs
    for values in (np.array(["a", "b"])[codes].tolist(), (codes == 1).tolist()):
        fast().fit(X, polars.Series(values))
        values[3] = None
        with pytest.raises(ValueError, match="none of them missing. Got None at 3"):
            fast().fit(X, polars.Series(values))


def test_masked_entries_and_dates_are_refused(blobs):
    X, y = blobs
    clf = fast().fit(np.ma.masked_array(X), np.ma.masked_array(y))
    masked = np.ma.masked_array(X, mask=X > 5)
    with pytest.raises(ValueError, match="X has .* masked entries"):
        clf.predict_selective(masked)
    with pytest.raises(ValueError, match="y has 1 masked entries"):
        fast().fit(X, np.ma.masked_array(y, mask=np.arange(len(y)) == 3))
    with pytest.raises(TypeError, match="X must hold numbers. Got dtype datetime64"):
        clf.predict(X.astype("datetime64[s]"))


def test_what_is_public_decides_nothing(blobs):
    X, y = blobs
    clf = fast().fit(X, y)
    accepted = clf.signals(X).accepted
    for array in (clf.thresholds_, *clf.region_report_.values()):
        array[...] = 0
    assert_array_equal(clf.signals(X).accepted, accepted)
    assert clf.classes_.tolist() == [0, 1]


def test_nan_labels(blobs):
    y = blobs[1].astype(float)
    y[3] = np.nan
    with pytest.raises(ValueError, match="y contains NaN"):
        fast().fit(blobs[0], y)


def test_one_class(blobs):
    with pytest.raises(ValueError, match="y holds one class only, 7"):
        fast().fit(blobs[0], np.full(300, 7))


@pytest.mark.parametrize("n", [1, 2])
def test_a_class_with_too_few_rows_is_named(n, blobs):
    X, codes = blobs
    y = np.array(["common", "usual"]).astype("<U10")[codes]
    y[:n] = "rareclass"
    with pytest.raises(ValueError, match=rf"Class 'rareclass' has . of its {n} rows"):
        fast().fit(X, y)


def test_a_rare_class_with_enough_rows_is_kept(blobs):
    X, codes = blobs
    y = np.array(["common", "usual"]).astype("<U10")[codes]
    y[:3] = "rareclass"
    with pytest.warns(
        NoRegionWarning, match="Class 'rareclass' has 1 calibration rows"
    ):
        clf = fast().fit(X, y)
    assert "rareclass" in clf.classes_
    assert clf.predict_proba(X).shape == (300, 3)


# No region ----------------------------------------------------------------------------


def test_regions_by_class_are_advised_where_they_help():
    X, y = make_blobs(300, n_classes=3, separation=8.0)
    few = np.flatnonzero((y < 2) | (np.cumsum(y == 2) <= 8))
    with pytest.warns(NoRegionWarning, match='Pass region="per_class" to answer'):
        fast(alpha=0.9).fit(X[few], y[few])
    with pytest.warns(NoRegionWarning) as caught:
        fast(alpha=0.99).fit(X, y)  # too few rows in every class
    assert "per_class" not in str(caught[0].message)


def test_no_region_warns_and_rejects_everything():
    X, y = make_blobs(300, separation=0.5)
    with pytest.warns(NoRegionWarning) as record:
        clf = fast(alpha=0.99).fit(X, y)
    message = str(record[0].message)
    assert record[0].filename == __file__
    assert "No region of the calibration half reaches alpha=0.99" in message
    assert "every row will be rejected" in message
    assert "(alpha_found_)" in message
    assert "Lower alpha, add labelled rows" in message
    assert clf.q_min_ == np.inf
    assert_array_equal(clf.thresholds_, [np.inf, np.inf])
    labels, accepted = clf.predict_selective(X, return_mask=True)
    assert not accepted.any()
    assert (labels == -1).all()
    assert_allclose(clf.predict_proba(X).sum(axis=1), 1)


def test_an_unattainable_alpha_at_predict_warns(fitted):
    clf, X, _, _ = fitted
    for method in ("predict_selective", "signals"):
        with pytest.warns(NoRegionWarning, match="reaches alpha=0.999") as record:
            getattr(clf, method)(X, alpha=0.999)
        assert record[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.predict_selective(X)
        clf.predict_selective(X, alpha=0.8)


def test_alpha_is_that_of_fit(fitted):
    clf, X, _, _ = fitted
    clf = copy.deepcopy(clf)
    expected = clf.signals(X)
    clf.set_params(alpha=0.05)
    for name, value in clf.signals(X).items():
        assert_array_equal(value, expected[name])


def test_attainable_alpha_is_attainable():
    X, y = make_blobs(400, separation=3)
    with pytest.warns(NoRegionWarning) as record:
        clf = fast(alpha=0.9999).fit(X, y)
    message = str(record[0].message)
    assert (
        f"The largest alpha attainable on this data is {clf.alpha_found_:g}" in message
    )
    assert "needs at least 9999 in every class" in message
    assert clf.predict_selective(X, alpha=clf.alpha_found_, return_mask=True)[1].any()


def test_no_alpha_is_attainable_on_noise():
    random = np.random.RandomState(0)
    X, y = random.randn(60, 4), random.randint(2, size=60)
    with pytest.warns(NoRegionWarning, match="No alpha above 1/2 is attainable"):
        clf = fast(max_epochs=1).fit(X, y)
    assert np.isnan(clf.alpha_found_)


# Bad input ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_input(value, fitted, blobs):
    clf, X, _, _ = fitted
    X = X.copy()
    X[2, 1] = value
    for method in METHODS:
        with pytest.raises(ValueError, match="Input X contains (NaN|infinity)"):
            getattr(clf, method)(X)
    X = blobs[0].copy()
    X[0, 0] = value
    with pytest.raises(ValueError, match="Input X contains (NaN|infinity)"):
        fast().fit(X, blobs[1])


def test_float16_overflow_says_what_to_do(blobs):
    with np.errstate(over="ignore"):
        X = (blobs[0] * 1e5).astype(np.float16)
    with pytest.raises(ValueError, match="65504: cache these embeddings as float32"):
        fast().fit(X, blobs[1])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_to_be_dropped(value, fitted):
    clf, X, _, _ = fitted
    X = X.copy()
    X[-1, 3] = value
    message = "Input X contains (NaN|infinity).*drop or recompute these embeddings"
    for dtype in (np.float32, np.float64):
        with pytest.raises(ValueError, match=message):
            clf.predict(X.astype(dtype))


@pytest.mark.parametrize("kind", [list, np.array, pandas.Series])
def test_texts_are_no_embeddings(kind, fitted):
    with pytest.raises(TypeError, match="Got texts, such as 'chest pain': embed them"):
        fitted[0].predict(kind(["chest pain", "no complaints"]))


@pytest.mark.parametrize("n_features", [11, 13])
def test_wrong_width(fitted, n_features):
    for method in METHODS:
        message = f"X has {n_features} features, but SDMClassifier is expecting 12"
        with pytest.raises(ValueError, match=message):
            getattr(fitted[0], method)(np.zeros((3, n_features)))


def test_feature_names_in_another_order(blobs):
    X = pandas.DataFrame(blobs[0], columns=[f"e{i}" for i in range(12)])
    clf = fast().fit(X, blobs[1])
    assert list(clf.feature_names_in_) == list(X.columns)
    for method in METHODS:
        with pytest.raises(ValueError, match="feature names"):
            getattr(clf, method)(X[X.columns[::-1]])


def test_one_row(blobs):
    with pytest.raises(ValueError, match=r"1 sample.* a minimum of 2 is required"):
        fast().fit(blobs[0][:1], blobs[1][:1])


def test_lengths_that_differ(blobs):
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fast().fit(blobs[0], blobs[1][:-1])


def test_continuous_targets(blobs):
    with pytest.raises(ValueError, match="continuous"):
        fast().fit(blobs[0], np.random.RandomState(0).rand(300))


def test_rows_that_overflow_float64(fitted):
    X = np.zeros((3, 12))
    X[1] = 1e308
    with pytest.raises(ValueError, match="float64 arithmetic: row 1 leads to"):
        fitted[0].predict_proba(X)


@pytest.mark.parametrize("method", METHODS)
def test_not_fitted(method):
    with pytest.raises(NotFittedError):
        getattr(SDMClassifier(), method)(np.zeros((2, 3)))


def test_no_rows_at_predict(fitted):
    with pytest.raises(ValueError, match="0 sample"):
        fitted[0].predict(np.empty((0, 12)))


# Input kinds --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda X: X.tolist(),
        np.asfortranarray,
        pandas.DataFrame,
        lambda X: polars.DataFrame(X, schema=[f"e{i}" for i in range(12)]),
        lambda X: X.astype(object),
        lambda X: np.ascontiguousarray(X[::-1])[::-1],
    ],
)
def test_input_containers(make, blobs):
    X, y = blobs
    clf = fast().fit(make(X), y)
    assert_array_equal(clf.predict_proba(make(X)), fast().fit(X, y).predict_proba(X))


def test_half_precision_equals_its_values_in_double():
    X, y = make_blobs(240, n_features=64, separation=40.0)
    half = (X * 20 + 100).astype(np.float16)
    expected = fast().fit(half.astype(np.float64), y)
    clf = fast().fit(half, y)
    for method in ("predict_proba", "transform"):
        assert_array_equal(
            getattr(clf, method)(half), getattr(expected, method)(half.astype(float))
        )


def test_read_only_memory_map(blobs, tmp_path):
    X, y = blobs
    np.save(tmp_path / "X.npy", X.astype(np.float16))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    clf = fast().fit(mapped, y)
    expected = fast().fit(X.astype(np.float16), y)
    assert_array_equal(clf.predict_proba(mapped), expected.predict_proba(mapped))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_input_is_not_modified(dtype, blobs):
    X, y = blobs[0].astype(dtype), blobs[1].copy()
    X_before, y_before = X.copy(), y.copy()
    clf = fast().fit(X, y)
    for method in METHODS:
        getattr(clf, method)(X)
    assert_array_equal(X, X_before)
    assert_array_equal(y, y_before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_offset_does_not_matter(dtype):
    X, y = make_blobs(400)
    plain, shifted = fast().fit(X, y), fast().fit((X + 1e4).astype(dtype), y)
    Z = (X + 1e4).astype(dtype)
    assert (plain.predict(X) == shifted.predict(Z)).mean() > 0.98
    shares = plain.signals(X).accepted.mean(), shifted.signals(Z).accepted.mean()
    assert abs(shares[0] - shares[1]) < 0.15


def test_duplicates_with_conflicting_labels_are_not_accepted():
    X, y = make_blobs(400)
    X[:200] = X[0]
    y[:200] = np.random.RandomState(1).randint(0, 2, 200)
    clf = fast().fit(X, y)
    assert not clf.signals(X[:1]).accepted[0]


def test_constant_features(blobs):
    clf = fast().fit(np.ones_like(blobs[0]), blobs[1])
    assert_allclose(clf.predict_proba(np.ones((2, 12))).sum(axis=1), 1)


# Updates ------------------------------------------------------------------------------


def test_add_to_support_equals_a_model_with_those_rows(fitted):
    clf, X, y, _ = fitted
    clf = copy.deepcopy(clf)
    signals = clf.signals(X[300:])
    clf.add_to_support(X[300:400], y[300:400])
    assert_array_equal(clf.support_indices_[-100:], np.arange(300, 400))
    # Rows just added are their own nearest exemplars.
    after = clf.signals(X[300:400])
    assert_array_equal(after.nearest_distance, np.zeros(100))
    assert_array_equal(after.nearest_index, np.arange(300, 400))
    assert not np.array_equal(clf.signals(X[300:]).similarity, signals.similarity)
    from sdm_sklearn._model import SDMModel

    model = clf._models[0]
    rows = clf.support_indices_
    codes = np.searchsorted(clf.classes_, y)
    rebuilt = SDMModel.from_training(
        model.adaptor, X, codes, (rows, clf.calibration_indices_), 3, None
    )
    for ours, anew in zip(
        model.calibration_rows, rebuilt.calibration_rows, strict=True
    ):
        assert_array_equal(anew, ours)
    assert_array_equal(rebuilt.find_region(0.9).q_min, clf.q_min_)


def test_adding_calibration_rows_warns(fitted):
    clf, X, y, _ = fitted
    clf = copy.deepcopy(clf)
    rows = clf.calibration_indices_[:7]
    with pytest.warns(
        UserWarning, match="7 of the 7 rows added equal calibration rows"
    ):
        clf.add_to_support(X[rows], y[rows])


def test_codes_instead_of_labels_are_refused(fitted):
    clf, X, _, _ = fitted
    with pytest.raises(ValueError, match="of the kind of the classes, such as 'ant'"):
        copy.deepcopy(clf).add_to_support(X[:2], [0, 1])


def test_rows_of_unknown_classes_break_runs(fitted):
    clf, X, _, _ = fitted
    clf = copy.deepcopy(clf)
    queries = X[300:310]
    assert (clf.signals(queries).similarity > 0).any()
    clf.add_to_support(queries, ["stranger"] * 10)
    signals = clf.signals(queries)
    assert (signals.similarity == 0).all()
    assert not signals.accepted.any()
    assert "stranger" not in clf.classes_


# Randomness, threads, processes -------------------------------------------------------


def test_same_seed_same_bits(blobs):
    X, y = blobs
    for seed in (0, np.int64(7)):
        first, second = (fast(random_state=seed).fit(X, y) for _ in range(2))
        assert_array_equal(first.predict_proba(X), second.predict_proba(X))
    random = np.random.RandomState(0)
    first, second = (fast(random_state=random).fit(X, y) for _ in range(2))
    assert not np.array_equal(first.predict_proba(X), second.predict_proba(X))


def test_n_jobs_gives_the_same_bits(blobs):
    X, y = blobs
    serial = fast(n_restarts=3, ensemble=True).fit(X, y)
    parallel = fast(n_restarts=3, ensemble=True, n_jobs=2).fit(X, y)
    with joblib.parallel_config("threading"):
        threaded = fast(n_restarts=3, ensemble=True, n_jobs=3).fit(X, y)
    for other in (parallel, threaded):
        assert_array_equal(other.predict_proba(X), serial.predict_proba(X))
        assert_array_equal(other.signals(X).accepted, serial.signals(X).accepted)
        assert other.history_ == serial.history_


def test_threads_agree_with_a_serial_fit(blobs):
    X, y = blobs
    expected = fast().fit(X, y).predict_proba(X)
    results = {}

    def work(i):
        results[i] = fast().fit(X, y).predict_proba(X)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    for result in results.values():
        assert_array_equal(result, expected)


def global_state():
    return (
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        np.geterr(),
        list(warnings.filters),
    )


def test_global_state_is_left_alone(blobs):
    X, y = blobs
    before = global_state()
    fast(random_state=0).fit(X, y).predict_selective(X)
    assert global_state() == before
    with pytest.raises(ValueError, match="Class 7 has"):
        fast(random_state=0).fit(X, np.r_[y[:-1], 7])
    assert global_state() == before


class Interrupt(ScoringMonitor):
    """Raises KeyboardInterrupt in the third epoch, as an impatient user would."""

    def __init__(self):
        super().__init__(scoring=lambda estimator, X, y: 0.0)
        self.count = 0

    def on_fit_task_end(self, estimator, context, **kwargs):
        self.count += 1
        if self.count == 3:
            raise KeyboardInterrupt


def test_an_interrupted_fit_leaves_nothing_behind(blobs):
    X, y = blobs
    clf = fast().fit(X, y)
    before = global_state()
    clf.set_callbacks(Interrupt())
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, y)
    assert global_state() == before
    with pytest.raises(NotFittedError):
        clf.predict(X)
    assert [name for name in vars(clf) if name.endswith("_")] == []
    clf.set_callbacks()
    clf.fit(X, y).predict(X)


def test_a_failing_fit_leaves_nothing_behind(blobs):
    X, y = blobs
    clf = fast().fit(X, y)
    with pytest.raises(ValueError, match="one class"):
        clf.fit(X, np.zeros(300))
    with pytest.raises(NotFittedError):
        clf.predict(X)


# Callbacks ----------------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_scoring_monitor_sees_every_epoch(blobs, n_jobs):
    X, y = blobs
    monitor = ScoringMonitor(scoring=_accuracy)
    clf = fast(n_restarts=2, max_epochs=4, patience=None, n_jobs=n_jobs)
    clf.set_callbacks(monitor).fit(X, y)
    epochs = [row for row in monitor.get_logs().data if row["task_name"] == "epoch"]
    assert len(epochs) == 8
    assert all(0 <= row["accuracy"] <= 1 for row in epochs)
    assert epochs[3]["accuracy"] > 0.9
    plain = fast(n_restarts=2, max_epochs=4, patience=None).fit(X, y)
    assert_array_equal(clf.predict_proba(X), plain.predict_proba(X))


def _accuracy(estimator, X, y):
    return {"accuracy": (estimator.predict(X) == y).mean()}


# Citizenship --------------------------------------------------------------------------


def test_grid_search_in_a_pipeline(blobs):
    X, y = blobs
    pipe = make_pipeline(StandardScaler(), fast(max_epochs=5))
    grid = {"sdmclassifier__alpha": [0.6, 0.9], "sdmclassifier__n_filters": [4, 16]}
    search = GridSearchCV(pipe, grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 4
    labels, accepted = predict_selective(search, X, return_mask=True)
    expected = search.best_estimator_[-1].predict_selective(
        search.best_estimator_[:-1].transform(X), return_mask=True
    )
    assert_array_equal(labels, expected[0])
    assert_array_equal(accepted, expected[1])
    assert_allclose(search.score_samples(X), search.best_estimator_.score_samples(X))


def test_cross_validation_under_loky_after_a_fit_in_the_parent(blobs):
    X, y = blobs
    fast().fit(X, y).predict(X)
    options = {"cv": 2, "method": "predict_proba"}
    serial = cross_val_predict(fast(), X, y, **options)
    parallel = cross_val_predict(fast(), X, y, n_jobs=2, **options)
    assert_array_equal(serial, parallel)
    scores = cross_validate(fast(), X, y, cv=2, n_jobs=2, error_score="raise")
    assert (scores["test_score"] > 0.9).all()


def test_large_input_arrives_as_a_memory_map_in_workers(blobs):
    X, y = blobs
    jobs = (joblib.delayed(_fit_and_predict)(fast(), X, y) for _ in range(2))
    first, second = joblib.Parallel(n_jobs=2, max_nbytes=1)(jobs)
    assert_array_equal(first, second)


def _fit_and_predict(clf, X, y):
    return clf.fit(X, y).predict_proba(X)


def test_inside_other_meta_estimators(blobs):
    X, codes = blobs
    y = np.array(["cancer", "not cancer"])[codes]
    calibrated = CalibratedClassifierCV(fast(), cv=2).fit(X, y)
    assert calibrated.score(X, y) > 0.9
    tuned = TunedThresholdClassifierCV(fast(), cv=2).fit(X, y)
    assert (tuned.predict(X) == y).mean() > 0.9


def test_clone_of_a_fitted_estimator_is_not_fitted(fitted):
    again = clone(fitted[0])
    assert again.get_params() == fitted[0].get_params()
    assert [name for name in vars(again) if name.endswith("_")] == []


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(fitted, protocol):
    clf, X, _, _ = fitted
    again = pickle.loads(pickle.dumps(clf, protocol=protocol))
    assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert_array_equal(again.predict_selective(X), clf.predict_selective(X))
    unfitted = pickle.loads(pickle.dumps(fast(), protocol=protocol))
    assert unfitted.get_params() == fast().get_params()


def test_copies_and_memory_mapped_loading(fitted, tmp_path):
    clf, X, _, _ = fitted
    joblib.dump(clf, tmp_path / "clf.joblib")
    for again in (
        copy.deepcopy(clf),
        joblib.load(tmp_path / "clf.joblib"),
        joblib.load(tmp_path / "clf.joblib", mmap_mode="r"),
    ):
        for method in METHODS:
            a, b = getattr(again, method)(X), getattr(clf, method)(X)
            if method == "signals":
                a, b = a.similarity, b.similarity
            elif method == "kneighbors":
                a, b = a[1], b[1]
            assert_array_equal(a, b)


def test_state_names_the_version(fitted, monkeypatch):
    state = fitted[0].__getstate__()
    assert state["_sdm_sklearn_version"] == sdm_sklearn.__version__
    data = pickle.dumps(fitted[0])
    monkeypatch.setattr(sdm_sklearn, "__version__", "9.9.9")
    with pytest.warns(UserWarning, match="saved by sdm_sklearn .* loaded by 9.9.9"):
        pickle.loads(data)


def test_fitted_state_is_numpy(fitted):
    data = pickle.dumps(fitted[0])
    assert b"torch" not in data


def test_predict_does_not_change_the_state(fitted):
    clf, X, _, far = fitted
    before = joblib.hash(clf)
    for method in METHODS:
        getattr(clf, method)(X)
        getattr(clf, method)(far)
    clf.predict_selective(X, alpha=0.7)
    assert joblib.hash(clf) == before


def test_html_repr_links_to_the_documentation(fitted):
    html = fitted[0]._repr_html_()
    assert "sdm_sklearn.SDMClassifier.html" in html
    assert "SDMClassifier" in repr(SDMClassifier(alpha=0.8))


def test_clinc_sized_problem_trains():
    """150 classes with few rows each: the eCDFs are empty at first."""
    X, y = make_blobs(150 * 12, n_features=64, n_classes=150, separation=9)
    clf = fast(n_filters=64, max_epochs=40).fit(X, y)
    assert clf.history_[0]["softmax_fallback"]
    assert clf.score(X, y) > 0.9
