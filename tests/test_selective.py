import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn import predict_selective
from sdm_sklearn._selective import (
    SelectiveClassifierMixin,
    check_alpha,
    reject,
    resolve_reject_label,
)


class Sure(SelectiveClassifierMixin, LogisticRegression):
    """Accepts what a logistic regression gives at least `alpha`."""

    def __init__(self, alpha=0.9):
        super().__init__()
        self.alpha = alpha

    def fit(self, X, y):
        super().fit(X, y)
        self.reject_label_ = resolve_reject_label("auto", self.classes_)
        return self

    def _decide(self, X, alpha):
        proba = self.predict_proba(X)
        return proba.argmax(axis=1), proba.max(axis=1) >= (alpha or self.alpha)


@pytest.mark.parametrize("alpha", [0.51, 0.95, np.float32(0.75), np.float64(0.9)])
def test_alphas(alpha):
    assert check_alpha(alpha) == float(alpha)
    assert type(check_alpha(alpha)) is float


@pytest.mark.parametrize("alpha", [0, 0.5, 1, 1.5, -1, np.nan, "0.9", None, True])
def test_bad_alphas(alpha):
    with pytest.raises(ValueError, match="alpha must be an accuracy with 1/2 < alpha"):
        check_alpha(alpha)


def test_percentages_are_told_from_accuracies():
    with pytest.raises(ValueError, match="For 95 % pass alpha=0.95"):
        check_alpha(95)


@pytest.mark.parametrize("alpha", [0.05, 0.5])
def test_error_rates_are_told_from_accuracies(alpha):
    message = r"not an error rate: for 5 % errors pass alpha=0.95"
    with pytest.raises(ValueError, match=message):
        check_alpha(alpha)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([0, 1], -1),
        ([-1, 1], -2),
        ([10, 20, 30], -1),
        ([-7.0, 2.0], -8),
        ([False, True], -1),
        (["a", "b"], "rejected"),
        (["_rejected", "rejected"], "__rejected"),
        (np.array(["a", "b"], dtype=object), "rejected"),
        (np.array([0, 255], dtype=np.uint8), -1),
    ],
)
def test_auto_reject_label(classes, expected):
    label = resolve_reject_label("auto", np.asarray(classes))
    assert label == expected
    assert label not in list(classes)


@pytest.mark.parametrize(
    ("label", "classes", "message"),
    [
        (1, [0, 1], r"reject_label=1 is one of the classes \[0, 1\]"),
        ("b", ["a", "b"], "reject_label='b' is one of the classes"),
        (-1, ["a", "b"], "cannot stand in one array .* pass a string that is no class"),
        ("none", [0, 1], "cannot stand in one array .* pass a number that is no class"),
        (None, [0, 1], "pass a number that is no class"),
        (None, ["a", "b"], "pass a string that is no class"),
        (2.5, [2**53 + 1, 2**53 + 2], "would be stored as .* their type can hold"),
        ("a\0", ["a", "b"], "reject_label='a.*' would be stored as 'a' beside"),
        ("auto", np.array(["2026-01-01"], "M8[D]"), "have no reject label: convert"),
        ("auto", np.array([b"a", b"b"]), "have no reject label: convert them to str"),
    ],
)
def test_bad_reject_labels(label, classes, message):
    with pytest.raises(ValueError, match=message):
        resolve_reject_label(label, np.asarray(classes))


@pytest.mark.parametrize(
    ("classes", "label", "dtype"),
    [
        (np.array(["no", "yes"]), "rejected", "<U8"),
        (np.array([False, True]), -1, np.int8),
        (np.array([0, 255], dtype=np.uint8), -1, np.int16),
        (np.array([1, 2], dtype=np.int64), -1, np.int64),
        (np.array([1, 2], dtype=np.uint64), -1, np.int64),
        (np.array([1, 2**64 - 1], dtype=np.uint64), -1, object),
        (np.array([1.0, 2.0]), -1, np.float64),
        (np.array([1, 2]), np.nan, np.float64),
        (np.array(["a", "b"], dtype=object), None, object),
    ],
)
def test_reject_never_cuts_or_wraps(classes, label, dtype):
    out = reject(classes, np.array([0, 1, 1]), np.array([True, False, True]), label)
    assert out.dtype == dtype
    assert out[0] == classes[0]
    assert out[2] == classes[1]
    assert out[1] is label or out[1] == label or np.isnan(label)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.float32])
def test_float_markers_are_stored_as_they_are(dtype):
    classes = np.array([0, 1], dtype=dtype)
    marker = resolve_reject_label(-9999.0, classes)
    out = reject(classes, np.array([0, 1]), np.array([True, False]), marker)
    assert out[1] == -9999.0


def test_rejected_labels_work_in_metrics(blobs):
    X, y = blobs
    for target in (y, np.array(["no", "yes"])[y]):
        clf = Sure(alpha=0.999).fit(X, target)
        labels, accepted = clf.predict_selective(X, return_mask=True)
        assert 0 < accepted.sum() < len(X)
        assert confusion_matrix(target, labels).shape == (3, 3)
        assert accuracy_score(target, labels) < 1
        f1_score(target, labels, average="macro")


def nested(X, y):
    search = GridSearchCV(
        Pipeline([("scale", StandardScaler()), ("clf", Sure())]), {"clf__alpha": [0.9]}
    )
    return [
        Sure().fit(X, y),
        make_pipeline(StandardScaler(), Sure()).fit(X, y),
        make_pipeline(Sure()).fit(X, y),
        search.fit(X, y),
        FrozenEstimator(make_pipeline(StandardScaler(), Sure()).fit(X, y)),
        make_pipeline(StandardScaler(), GridSearchCV(Sure(), {"alpha": [0.9]})).fit(
            X, y
        ),
    ]


def test_unwraps_meta_estimators(blobs):
    X, y = blobs
    for estimator in nested(X, y):
        labels, accepted = predict_selective(estimator, X, alpha=0.99, return_mask=True)
        assert_array_equal(labels[accepted], estimator.predict(X)[accepted])
        assert (labels[~accepted] == -1).all()
        assert 0 < accepted.sum() < len(X)
        assert_array_equal(predict_selective(estimator, X, alpha=0.99), labels)


@pytest.mark.parametrize("wrap", [lambda e: e, make_pipeline, FrozenEstimator])
def test_other_classifiers_are_named(wrap, blobs):
    X, y = blobs
    estimator = wrap(LogisticRegression().fit(X, y))
    if isinstance(estimator, Pipeline):
        estimator.fit(X, y)
    with pytest.raises(
        TypeError, match="LogisticRegression.* has no predict_selective"
    ):
        predict_selective(estimator, X)


def test_other_estimators_with_a_refit_parameter_are_no_searches(blobs):
    estimator = TunedThresholdClassifierCV(LogisticRegression(), cv=2).fit(*blobs)
    with pytest.raises(
        TypeError, match="TunedThresholdClassifierCV has no predict_select"
    ):
        predict_selective(estimator, blobs[0])


def test_search_without_refit_is_named(blobs):
    search = GridSearchCV(Sure(), {"alpha": [0.9]}, refit=False).fit(*blobs)
    with pytest.raises(TypeError, match="refit=False .* search with refit=True"):
        predict_selective(search, blobs[0])


@pytest.mark.parametrize(
    "estimator", [Sure(), make_pipeline(Sure()), GridSearchCV(Sure(), {"alpha": [0.9]})]
)
def test_not_fitted(estimator, blobs):
    with pytest.raises(NotFittedError):
        predict_selective(estimator, blobs[0])


def test_alpha_is_checked_at_predict(blobs):
    with pytest.raises(ValueError, match="alpha must be an accuracy"):
        Sure().fit(*blobs).predict_selective(blobs[0], alpha=0.2)


def test_the_reject_label_is_no_class_once_stored():
    classes = np.array([-1e17, 1.0])
    label = resolve_reject_label("auto", classes)
    assert np.float64(label) not in classes
    assert np.float64(label) < classes.min()
