"""SDMClassifier with certificates and regions by class."""

import pickle
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binom
from sklearn.base import clone
from sklearn.model_selection import PredefinedSplit, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn import (
    NoRegionWarning,
    SDMClassifier,
    ThinEvidenceWarning,
    predict_selective,
)
from sdm_sklearn._evidence import count_accepted
from tests.conftest import fast, make_blobs


def certified(**parameters):
    return fast(guarantee="certified", **parameters)


def make_unlearnable_class(n=600):
    """Two classes apart, and a third whose rows lie on the second's."""
    X, y = make_blobs(n, n_classes=2, separation=8.0)
    random = np.random.RandomState(1)
    return X, np.where((y == 1) & (random.rand(n) < 0.4), 2, y)


@pytest.fixture(scope="module")
def data():
    X, y = make_blobs(800, n_classes=2, separation=6.0)
    return X[:500], y[:500], X[500:], y[500:]


@pytest.fixture(scope="module")
def model(data):
    return certified().fit(*data[:2])


# Regions by class ---------------------------------------------------------------------


def test_a_class_that_cannot_reach_alpha_is_left_unanswered(caplog):
    X, y = make_unlearnable_class()
    with pytest.warns(NoRegionWarning):
        joint = fast().fit(X, y)
    assert not joint.predict_selective(X, return_mask=True)[1].any()
    clf = fast(region="per_class").fit(X, y)
    assert "classes are never answered at alpha=" in caplog.text
    report = clf.region_report_
    assert_array_equal(report["class"], clf.classes_)
    assert report["answered"][0]
    assert not report["answered"].all()
    assert_array_equal(np.isfinite(report["q_min"]), report["answered"])
    assert_array_equal(report["threshold"], clf.thresholds_)
    assert clf.q_min_ == report["q_min"].min()
    labels, accepted = clf.predict_selective(X, return_mask=True)
    assert accepted.any()
    assert report["answered"][labels[accepted]].all()
    assert clf.alpha_found_ >= 0.9


def test_the_report_counts_the_calibration_half(data):
    X, y = data[:2]
    clf = fast().fit(X, y)
    rows = clf.calibration_indices_
    accepted = clf.predict_selective(X[rows], return_mask=True)[1]
    n, wrong = count_accepted(clf.predict(X[rows]), y[rows], accepted, 2)
    report = clf.region_report_
    assert_array_equal(report["n_calibration"], np.bincount(y[rows]))
    assert_array_equal(report["n_predicted"], n[0])
    assert_array_equal(report["n_of_class"], n[1])
    assert_allclose(report["prediction_accuracy"], 1 - wrong[0] / n[0])
    assert_allclose(report["class_accuracy"], 1 - wrong[1] / n[1])


# Certificates -------------------------------------------------------------------------


def test_certify_rows_took_no_part(model, data):
    parts = (
        model.support_indices_,
        model.calibration_indices_,
        model.certify_indices_,
    )
    assert [len(part) for part in parts] == [250, 125, 125]
    assert_array_equal(np.sort(np.concatenate(parts)), np.arange(500))
    # Other labels of these rows change the certificate, and nothing else.
    X, y = data[:2]
    other = y.copy()
    other[model.certify_indices_] = 1 - other[model.certify_indices_]
    with pytest.warns(NoRegionWarning):
        again = clone(model).fit(X, other)
    assert_array_equal(again.certify_indices_, model.certify_indices_)
    assert_array_equal(again.transform(X), model.transform(X))
    for name in ("logits", "similarity", "distance", "probability"):
        assert_array_equal(again.signals(X)[name], model.signals(X)[name])
    assert again.alpha_found_ == model.alpha_found_
    assert not again.predict_selective(X, return_mask=True)[1].any()


def test_what_is_certified_passes_its_test(model, data):
    X, y, X_test, y_test = data
    rows = model.certify_indices_
    labels, accepted = model.predict_selective(X[rows], return_mask=True)
    n, wrong = count_accepted(model.predict(X[rows]), y[rows], accepted, 2)
    table = model.certificate_
    assert_array_equal(table["n"], n.ravel())
    assert_allclose(table["accuracy"], (1 - wrong / n).ravel())
    assert (table["bound"] >= 0.9).all()
    assert (binom.cdf(wrong, n, 0.1) <= 0.1).all()
    assert repr(table) == "2 of 2 classes hold 0.9"
    assert "2 of 2 classes hold 0.9" in model._repr_html_()
    # q > 0 and the threshold of the prediction decide.
    signals = model.signals(X_test)
    expected = ~signals.is_ood & (
        signals.probability >= model.thresholds_[signals.prediction]
    )
    assert_array_equal(signals.accepted, expected)
    assert model.q_min_ == 1
    assert (model.thresholds_ >= 0.9).all()
    accuracy = (signals.prediction == y_test)[signals.accepted].mean()
    assert signals.accepted.mean() > 0.5
    assert accuracy >= 0.9


def test_nothing_certified_is_told(data):
    X, y = data[:2]
    with pytest.warns(NoRegionWarning) as record:
        clf = certified(alpha=0.99).fit(X, y)
    message = str(record[0].message)
    assert record[0].filename == __file__
    assert "No class is certified to reach alpha=0.99 at confidence 0.9" in message
    assert "at least 230 accepted certify rows" in message
    assert clf.q_min_ == np.inf
    assert not clf.region_report_["answered"].any()
    assert repr(clf.certificate_) == "0 of 2 classes hold 0.99"
    assert_array_equal(clf.certificate_["n"], 0)


def test_more_confidence_asks_for_more(data):
    X, y = data[:2]
    found = []
    for confidence in (0.5, 0.9, 0.999):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoRegionWarning)
            clf = certified(confidence=confidence, alpha=0.93).fit(X, y)
        found.append(clf.predict_selective(X, return_mask=True)[1].mean())
    assert found[0] >= found[1] >= found[2]
    assert found[0] > 0
    assert found[2] == 0


@pytest.mark.parametrize("region", ["joint", "per_class"])
def test_alpha_at_predict_equals_a_fit_with_it(data, region):
    X, y, X_test, _ = data
    clf = certified(region=region).fit(X, y)
    for alpha in (0.7, 0.85):
        other = clone(clf).set_params(alpha=alpha).fit(X, y)
        assert_array_equal(
            clf.predict_selective(X_test, alpha=alpha), other.predict_selective(X_test)
        )
    with pytest.warns(NoRegionWarning, match="No class is certified"):
        clf.predict_selective(X_test, alpha=0.99)


@pytest.mark.parametrize(
    "parameters", [{"ensemble": True, "n_restarts": 2}, {"conservative": True}]
)
def test_the_certificate_is_of_the_rule_in_use(data, parameters):
    X, y = data[:2]
    clf = certified(alpha=0.8, **parameters).fit(X, y)
    rows = clf.certify_indices_
    _, accepted = clf.predict_selective(X[rows], return_mask=True)
    assert accepted.any()
    n, _ = count_accepted(clf.predict(X[rows]), y[rows], accepted, 2)
    assert_array_equal(clf.certificate_["n"], n.ravel())
    assert (clf.certificate_["bound"] >= 0.8).all()


def test_a_minority_is_left_unanswered_by_class():
    X, y = make_unlearnable_class(900)
    with pytest.warns(NoRegionWarning, match="No class is certified"):
        certified().fit(X, y)
    clf = certified(region="per_class").fit(X, y)
    answered = clf.region_report_["answered"]
    assert answered[0]
    assert not answered.all()
    bound = clf.certificate_["bound"].reshape(2, -1)
    assert (bound[:, answered] >= 0.9).all()


def test_bounds_of_the_paper_s_region_hold_at_once(data):
    X, y = data[:2]
    clf = fast(certify_size=0.4).fit(X, y)
    assert len(clf.certify_indices_) == int(0.5 * 0.4 * 500)
    without = fast(cv=[(clf.support_indices_, clf.calibration_indices_)]).fit(X, y)
    assert not hasattr(without, "certificate_")
    assert not hasattr(without, "certify_indices_")
    table = clf.certificate_
    n, right = table["n"], np.rint(table["accuracy"] * table["n"])
    wrong = n - right
    # Each bound is the accuracy at which so few errors have the probability 0.1 / 4.
    assert_allclose(binom.cdf(wrong, n, 1 - table["bound"]), 0.025)


def test_certify_rows_come_from_a_calibration_set_that_is_given(data):
    X, y = data[:2]
    fold = np.where(np.arange(len(y)) < 200, 0, -1)
    with pytest.warns(UserWarning, match="cv names the rows of each half"):
        clf = certified(cv=PredefinedSplit(fold)).fit(X, y)
    assert_array_equal(clf.support_indices_, np.arange(200, 500))
    assert len(clf.certify_indices_) == 100
    assert_array_equal(
        np.union1d(clf.certify_indices_, clf.calibration_indices_), np.arange(200)
    )
    clf = certified(cv=StratifiedKFold(4)).fit(X, y)
    assert len(clf.certify_indices_) == 62
    for rows in (clf.support_indices_, clf.calibration_indices_):
        assert not np.isin(rows, clf.certify_indices_).any()


def test_splits_that_may_keep_groups_together_are_warned_of(data):
    X, y = data[:2]
    pairs = [(np.arange(200, 500), np.arange(200))]
    for options in (
        {"guarantee": "certified", "cv": pairs},
        {"guarantee": "certified", "cv": PredefinedSplit(np.arange(500) // 250 - 1)},
        {"certify_size": 0.5, "cv": pairs},
    ):
        with pytest.warns(UserWarning, match="names the rows.*certificate is void"):
            fast(**options).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ThinEvidenceWarning)
        fast(cv=pairs).fit(X, y)
        certified(cv=StratifiedKFold(2)).fit(X, y)


def test_rows_of_the_certificate_are_no_new_support(data):
    X, y = data[:2]
    clf = certified().fit(X, y)
    before = {name: getattr(clf, name) for name in ("_models", "certificate_")}
    rows = clf.certify_indices_[:3]
    new = np.vstack([X[:2] + 0.01, X[rows]])
    with pytest.raises(ValueError, match="3 of the 5 rows to add.*first is row 2"):
        clf.add_to_support(new, y[[0, 1, *rows]])
    assert all(getattr(clf, name) is value for name, value in before.items())
    clf.add_to_support(new[:2], y[:2])


def test_new_support_is_certified_anew(data):
    X, y, X_test, y_test = data
    clf = certified().fit(X, y)
    before = clf.certificate_
    clf.add_to_support(X_test[:50], y_test[:50])
    assert clf.certificate_ is not before
    rows = clf.certify_indices_
    _, accepted = clf.predict_selective(X[rows], return_mask=True)
    n, _ = count_accepted(clf.predict(X[rows]), y[rows], accepted, 2)
    assert_array_equal(clf.certificate_["n"], n.ravel())


def test_a_certified_model_in_a_pipeline_and_a_pickle(data, model):
    X, y, X_test, _ = data
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict_selective(X_test), model.predict_selective(X_test))
    assert_array_equal(again.certificate_["bound"], model.certificate_["bound"])
    pipe = make_pipeline(StandardScaler(), certified()).fit(X, y)
    assert (predict_selective(pipe, X_test) >= 0).any()


def test_a_second_fit_forgets_the_certificate(data):
    X, y = data[:2]
    clf = certified().fit(X, y)
    clf.set_params(guarantee="paper").fit(X, y)
    assert not hasattr(clf, "certificate_")
    assert not hasattr(clf, "certify_indices_")


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("region", "each"),
        ("guarantee", None),
        ("confidence", 1.0),
        ("certify_size", 1.0),
        ("certify_size", 0),
    ],
)
def test_bad_parameters_are_named(parameter, value, data):
    with pytest.raises(
        ValueError, match=f"The '{parameter}' parameter of SDMClassifier"
    ):
        fast(**{parameter: value}).fit(*data[:2])


# Thin evidence ------------------------------------------------------------------------


def test_thin_evidence_is_told():
    X, y = make_blobs(60, separation=8.0)
    with pytest.warns(ThinEvidenceWarning) as record:
        clf = fast().fit(X, y)
    assert record[0].filename == __file__
    message = str(record[0].message)
    n = clf.region_report_["n_predicted"].sum()
    assert 0 < n <= 30
    assert f"rests on thin evidence: it accepts {n} rows" in message
    with pytest.warns(ThinEvidenceWarning, match="at alpha=0.89 "):
        clf.predict_selective(X, alpha=0.89)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(confidence=0.001, alpha=0.6).fit(X, y)
        clf.predict_selective(X)


# Model files --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {"guarantee": "certified"},
        {"guarantee": "certified", "region": "per_class", "alpha": 0.8},
        {"region": "per_class"},
        {"certify_size": 0.4},
    ],
)
def test_a_saved_model_keeps_its_guarantee(data, tmp_path, parameters):
    X, y, X_test, _ = data
    clf = fast(**parameters).fit(X, y)
    clf.save(tmp_path / "model.npz")
    again = SDMClassifier.load(tmp_path / "model.npz")
    for alpha in (None, 0.75):
        assert_array_equal(
            again.predict_selective(X_test, alpha=alpha),
            clf.predict_selective(X_test, alpha=alpha),
        )
    for name in ("region_report_", "certificate_"):
        assert hasattr(again, name) == hasattr(clf, name)
        for column, values in getattr(clf, name, {}).items():
            assert_array_equal(getattr(again, name)[column], values)
    assert again.q_min_ == clf.q_min_


@pytest.mark.parametrize("fitted", ["joint", "per_class", "certified"])
@pytest.mark.parametrize(
    "changed",
    [
        {"region": "joint"},
        {"region": "per_class"},
        {"guarantee": "paper"},
        {"guarantee": "certified"},
        {"conservative": True, "confidence": 0.99},
    ],
)
def test_parameters_changed_after_fit_change_no_answer(fitted, changed, tmp_path):
    X, y = make_blobs(700, n_classes=3, separation=3.0)
    parameters = {"region": fitted}
    if fitted == "certified":
        parameters = {"region": "per_class", "guarantee": "certified"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoRegionWarning)
        clf = fast(alpha=0.7, **parameters).fit(X, y)
        expected = [
            clf.predict_selective(X, alpha=a, return_mask=True)[1] for a in (None, 0.8)
        ]
        assert expected[0].any()
        certificate = getattr(clf, "certificate_", {})
        clf.set_params(**changed)
        clf.save(tmp_path / "model.npz")
        for model in (clf, SDMClassifier.load(tmp_path / "model.npz")):
            for alpha, accepted in zip((None, 0.8), expected, strict=True):
                asked = model.predict_selective(X, alpha=alpha, return_mask=True)[1]
                assert_array_equal(asked, accepted)
            at_its_own = model.predict_selective(X, alpha=0.7, return_mask=True)[1]
            assert_array_equal(at_its_own, expected[0])
            for name, column in certificate.items():
                assert_array_equal(model.certificate_[name], column)
        clf.add_to_support(X[:2] + 0.1, y[:2])
