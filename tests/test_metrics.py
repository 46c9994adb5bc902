"""Selective metrics against scikit-learn, hand-worked cases and definitions."""

import warnings
from fractions import Fraction
from itertools import permutations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.calibration import calibration_curve
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import (
    accuracy_score,
    precision_score,
    recall_score,
    roc_auc_score,
)

from sdm_sklearn import metrics as m
from sdm_sklearn.metrics._calibration import assign_bins

# Two classes, six rows, the last rejected: 0 has 2 of 3 accepted rows right, 1 has 2
# of 2; predicted 0 is right 2 of 2, predicted 1 is right 2 of 3.
Y_TRUE = np.array([0, 0, 0, 1, 1, 1])
Y_PRED = np.array([0, 0, 1, 1, 1, 0])
ACCEPTED = np.array([True, True, True, True, True, False])

LABELLED = [
    m.selective_accuracy_score,
    m.selective_risk,
    m.class_conditional_accuracy_score,
    m.prediction_conditional_accuracy_score,
    m.worst_conditional_accuracy_score,
    m.selective_classification_report,
]
# Runs are not timed: the machine may be busy.
quick = settings(deadline=None, max_examples=50)

RANKED = [m.aurc, m.excess_aurc, m.augrc, m.risk_coverage_curve]


# ------------------------------------------------------------------ accepted rows
def test_hand_worked_values():
    assert m.coverage_score(ACCEPTED) == 5 / 6
    assert m.selective_accuracy_score(Y_TRUE, Y_PRED, ACCEPTED) == 4 / 5
    assert m.selective_risk(Y_TRUE, Y_PRED, ACCEPTED) == 1 / 5
    by_class = m.class_conditional_accuracy_score(Y_TRUE, Y_PRED, ACCEPTED)
    by_prediction = m.prediction_conditional_accuracy_score(Y_TRUE, Y_PRED, ACCEPTED)
    np.testing.assert_array_equal(by_class, [2 / 3, 1])
    np.testing.assert_array_equal(by_prediction, [1, 2 / 3])
    assert m.worst_conditional_accuracy_score(Y_TRUE, Y_PRED, ACCEPTED) == 2 / 3


@st.composite
def selective_cases(draw, max_classes=4):
    """Draw labels, predictions, a mask that accepts something, and weights."""
    n = draw(st.integers(1, 25))
    codes = st.lists(st.integers(0, max_classes - 1), min_size=n, max_size=n)
    y_true, y_pred = np.array(draw(codes)), np.array(draw(codes))
    accepted = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    accepted[draw(st.integers(0, n - 1))] = True
    weights = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    weights = np.array(weights)
    weights[np.flatnonzero(accepted)[0]] = 1
    return y_true, y_pred, accepted, weights


@quick
@given(selective_cases())
def test_agrees_with_sklearn_on_the_accepted_rows(case):
    y_true, y_pred, accepted, w = case
    part = y_true[accepted], y_pred[accepted]
    kwargs = {"sample_weight": w[accepted]}
    got = m.selective_accuracy_score(y_true, y_pred, accepted, sample_weight=w)
    assert got == pytest.approx(accuracy_score(*part, **kwargs))
    risk = m.selective_risk(y_true, y_pred, accepted, sample_weight=w)
    assert risk == pytest.approx(1 - got)
    sklearn_kwargs = {
        **kwargs,
        "labels": range(4),
        "average": None,
        "zero_division": np.nan,
    }
    worst = []
    for ours, theirs in (
        (m.class_conditional_accuracy_score, recall_score),
        (m.prediction_conditional_accuracy_score, precision_score),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            got = ours(y_true, y_pred, accepted, labels=range(4), sample_weight=w)
        want = theirs(*part, **sklearn_kwargs)
        np.testing.assert_allclose(got, want)
        worst.append(np.nanmin(got))
    score = m.worst_conditional_accuracy_score
    assert score(y_true, y_pred, accepted, sample_weight=w) == min(worst)
    for condition, want in zip(("class", "prediction"), worst, strict=True):
        got = score(y_true, y_pred, accepted, sample_weight=w, condition=condition)
        assert got == want


@quick
@given(selective_cases())
def test_weights_are_repetitions(case):
    y_true, y_pred, accepted, w = case
    repeated = [np.repeat(values, w) for values in (y_true, y_pred, accepted)]
    assert m.coverage_score(accepted, sample_weight=w) == pytest.approx(
        m.coverage_score(repeated[2])
    )
    for score in (m.selective_accuracy_score, m.worst_conditional_accuracy_score):
        got = score(y_true, y_pred, accepted, sample_weight=w)
        assert got == pytest.approx(score(*repeated))
    report = m.selective_classification_report
    got = report(
        y_true, y_pred, accepted, labels=range(4), sample_weight=w, output_dict=True
    )
    want = report(*repeated, labels=range(4), output_dict=True)
    assert got["support"] == want["support"]
    assert got["marginal"] == pytest.approx(want["marginal"])
    for part in ("class_conditional", "prediction_conditional"):
        for name in got[part]:
            assert got[part][name] == pytest.approx(want[part][name], nan_ok=True)


@quick
@given(selective_cases())
def test_rejected_predictions_are_not_looked_at(case):
    y_true, y_pred, accepted, _ = case
    marked = np.where(accepted, y_pred, -1)
    score = m.worst_conditional_accuracy_score
    assert score(y_true, y_pred, accepted) == score(y_true, marked, accepted)


LABEL_KINDS = {
    "bool": np.array([False, True]),
    "signed": np.array([-1, 1], dtype=np.int8),
    "unsigned": np.array([3, 255], dtype=np.uint8),
    "float": np.array([0.0, 1.0]),
    "str": np.array(["no", "yes, indeed"]),
    "bytes": np.array([b"no", b"yes"]),
    "object": np.array(["no", "yes"], dtype=object),
}


@pytest.mark.parametrize("kind", LABEL_KINDS)
@pytest.mark.parametrize("reject_label", [-1, "rejected", None, np.nan])
def test_labels_of_any_kind_and_any_reject_label(kind, reject_label):
    y_true = LABEL_KINDS[kind][Y_TRUE]
    y_pred = LABEL_KINDS[kind][Y_PRED].astype(object)
    y_pred[~ACCEPTED] = reject_label
    got = m.class_conditional_accuracy_score(y_true, y_pred, ACCEPTED)
    np.testing.assert_array_equal(got, [2 / 3, 1])
    report = m.selective_classification_report(
        y_true, y_pred, ACCEPTED, output_dict=True
    )
    assert list(report["support"]) == [str(v) for v in LABEL_KINDS[kind].tolist()]
    assert list(report["support"].values()) == [3, 3]


@pytest.mark.parametrize(
    "convert",
    [
        list,
        pd.Series,
        lambda y: pd.Series(y, index=range(10, 16)),
        lambda y: pd.Series(y, dtype="category"),
        pl.Series,
    ],
)
def test_containers(convert):
    y_true, y_pred = (np.array(["a", "b"])[y] for y in (Y_TRUE, Y_PRED))
    score = m.worst_conditional_accuracy_score
    got = score(convert(y_true), convert(y_pred), ACCEPTED)
    assert got == 2 / 3


def test_nullable_pandas_columns():
    mask = pd.Series(ACCEPTED, dtype="boolean")
    y_true = pd.Series(Y_TRUE, dtype="Int64")
    y_pred = pd.Series(Y_PRED, dtype="Int64").where(mask)  # NA where rejected
    assert m.selective_accuracy_score(y_true, y_pred, mask) == 4 / 5
    assert m.coverage_score(pl.Series(ACCEPTED)) == 5 / 6
    assert m.coverage_score(ACCEPTED.astype(object)) == 5 / 6


def test_bool_classes_beside_a_numeric_reject_label():
    y_true = Y_TRUE.astype(bool)
    y_pred = np.where(ACCEPTED, Y_PRED, -1).astype(np.int8)
    assert m.selective_accuracy_score(y_true, y_pred, ACCEPTED) == 4 / 5


def test_numpy_strings_among_python_strings():
    y = np.array([np.str_("a"), "b"], dtype=object)
    assert m.selective_accuracy_score(y, ["a", "b"], [True, True]) == 1


def test_labels_choose_and_order():
    y_true = np.append(Y_TRUE, 7)  # an out-of-scope row, accepted
    y_pred, accepted = np.append(Y_PRED, 1), np.append(ACCEPTED, True)
    score = m.class_conditional_accuracy_score
    np.testing.assert_array_equal(
        score(y_true, y_pred, accepted, labels=[7, 1, 0]), [0, 1, 2 / 3]
    )
    # It is an error of the rows predicted as 1, whether or not 7 is reported.
    got = m.prediction_conditional_accuracy_score(
        y_true, y_pred, accepted, labels=[0, 1]
    )
    np.testing.assert_array_equal(got, [1, 2 / 4])
    with pytest.warns(UndefinedMetricWarning, match="true class 9"):
        got = score(y_true, y_pred, accepted, labels=[9, 1])
    np.testing.assert_array_equal(got, [np.nan, 1])


def test_one_class():
    score = m.worst_conditional_accuracy_score
    assert score(["a"] * 3, ["a"] * 3, [True] * 3) == 1
    assert m.selective_accuracy_score(["a"] * 3, ["a"] * 3, [True] * 3) == 1


# ---------------------------------------------------------------- nothing accepted
@pytest.mark.parametrize("score", LABELLED[:5])
@pytest.mark.parametrize("weights", [None, [1, 0]])
def test_nothing_accepted_is_nan_with_a_warning(score, weights):
    accepted = [False, weights is not None]  # by mask, or by weight
    args = ["a", "b"], ["a", "b"], accepted
    with pytest.warns(UndefinedMetricWarning, match="no row is accepted") as record:
        got = score(*args, sample_weight=weights)
    assert np.isnan(got).all()
    assert record[0].filename == __file__
    got = score(*args, sample_weight=weights, replace_undefined_by=0)
    np.testing.assert_array_equal(got, 0.0)


def test_coverage_of_nothing_is_zero():
    assert m.coverage_score([False, False]) == 0


def test_a_class_without_accepted_rows():
    args = [0, 0, 1], [0, 0, 1], [True, True, False]
    with pytest.warns(UndefinedMetricWarning, match="predicted class 1"):
        got = m.prediction_conditional_accuracy_score(*args)
    np.testing.assert_array_equal(got, [1, np.nan])
    got = m.class_conditional_accuracy_score(*args, replace_undefined_by=0.5)
    np.testing.assert_array_equal(got, [1, 0.5])
    assert m.worst_conditional_accuracy_score(*args) == 1


# ------------------------------------------------------------------------- report
def test_report_numbers():
    got = m.selective_classification_report(Y_TRUE, Y_PRED, ACCEPTED, output_dict=True)
    assert got == {
        "class_conditional": {
            "0": {"accuracy": 2 / 3, "share": 3 / 6, "accepted": 3},
            "1": {"accuracy": 1.0, "share": 2 / 6, "accepted": 2},
        },
        "prediction_conditional": {
            "0": {"accuracy": 1.0, "share": 2 / 6, "accepted": 2},
            "1": {"accuracy": 2 / 3, "share": 3 / 6, "accepted": 3},
        },
        "marginal": {"accuracy": 4 / 5, "share": 5 / 6, "accepted": 5},
        "worst_conditional_accuracy": 2 / 3,
        "support": {"0": 3, "1": 3},
    }


def test_report_text():
    text = m.selective_classification_report(
        Y_TRUE, Y_PRED, ACCEPTED, target_names=["a", "a long name"], digits=2
    )
    lines = text.splitlines()
    assert lines[0].split() == ["class-conditional", "prediction-conditional"]
    assert lines[1].split() == ["accuracy", "share", "accuracy", "share", "support"]
    assert lines[3].split() == ["a", "0.67", "0.50", "1.00", "0.33", "3"]
    assert lines[-2].split() == ["worst", "0.67", "0.67"]
    assert lines[-1].split() == ["marginal", "0.80", "0.83", "0.80", "0.83", "6"]
    ends = {len(line) for line in lines[3:5] + lines[-1:]}
    assert len(ends) == 1


def test_report_counts_are_not_abbreviated():
    n = 1_234_567
    y = np.zeros(n, dtype=np.int8)
    text = m.selective_classification_report(y, y, np.ones(n, dtype=bool))
    assert text.splitlines()[-1].split()[-1] == "1234567"
    text = m.selective_classification_report(
        [0, 1], [0, 1], [True, True], sample_weight=[1e6, 0.25]
    )
    assert text.splitlines()[-1].split()[-1] == "1000000.2"


def test_report_with_nothing_accepted():
    args = [0, 1], [0, 1], [False, False]
    with pytest.warns(UndefinedMetricWarning, match="no row is accepted") as record:
        text = m.selective_classification_report(*args)
    assert record[0].filename == __file__
    assert text.splitlines()[-1].split() == ["marginal", *["n/a", "0.000"] * 2, "2"]


def test_report_target_names():
    for names in (["a"], ["a", "a"]):
        with pytest.raises(ValueError, match="target_names must hold 2 distinct"):
            m.selective_classification_report(
                Y_TRUE, Y_PRED, ACCEPTED, target_names=names
            )


# ----------------------------------------------------------------------- refusals
UNHASHABLE = np.empty(2, dtype=object)
UNHASHABLE[:] = [0, 1]
UNHASHABLE[0] = [1]


@pytest.mark.parametrize("score", LABELLED)
@pytest.mark.parametrize(
    ("y_true", "y_pred", "accepted", "message"),
    [
        ([0, 1], [0], [True, True], "y_pred has 1 rows where 2"),
        ([0, 1], [0, 1], [True], "accepted has 1 rows where 2"),
        ([0, 1], [[0, 1]], [True, True], r"y_pred must be a 1-D array.*\(1, 2\)"),
        ([[0], [1]], [0, 1], [True, True], r"y_true must be a 1-D array.*\(2, 1\)"),
        ([], [], [], "y_true is empty"),
        ([0, 1], [0, 1], [1, 0], "accepted must be a boolean mask.*int64"),
        ([0, 1], ["a", "b"], [True, True], "different kinds"),
        (np.array([0, "a"], object), [0, 1], [True, True], "different kinds"),
        ([0, np.nan], [0, 1], [True, True], "y_true must hold labels.*nan"),
        ([0, 1], [0, None], [True, True], "y_pred must hold labels.*None"),
        ([0, 1], [0, np.inf], [True, True], "y_pred must hold labels.*inf"),
        ([0, 1], [0.2, 0.9], [True, True], "y_pred must hold labels.*whole numbers"),
        ([[0], [1, 2]], [0, 1], [True, True], "y_true must be a 1-D array"),
        (UNHASHABLE, [0, 1], [True, True], r"y_true must hold labels.*\[1\]"),
        ([0, 1], UNHASHABLE, [True, True], r"y_pred must hold labels.*\[1\]"),
        (pd.array([1, None]), [0, 1], [True, True], "y_true must hold labels"),
        (
            np.ma.masked_array([0, 1], [0, 1]),
            [0, 1],
            [True, True],
            "y_true has 1 masked entries",
        ),
    ],
)
def test_refusals(score, y_true, y_pred, accepted, message):
    with pytest.raises(ValueError, match=message):
        score(y_true, y_pred, accepted)


@pytest.mark.parametrize("score", LABELLED)
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "sample_weight has 1 rows where 2"),
        ([0.0, 0.0], "sample_weight is zero for every row"),
        ([1.0, -1.0], "sample_weight must not be negative. Got -1 at index 1"),
        ([1.0, np.nan], "sample_weight must hold finite numbers. Got nan at index 1"),
        (["a", "b"], "sample_weight must hold numbers"),
        ([1e308, 1e308], "sample_weight is too large to be summed"),
    ],
)
def test_weight_refusals(score, weights, message):
    with pytest.raises(ValueError, match=message):
        score([0, 1], [0, 1], [True, True], sample_weight=weights)
    with pytest.raises(ValueError, match=message):
        m.coverage_score([True, True], sample_weight=weights)
    with pytest.raises(ValueError, match=message):
        m.aurc([0, 1], [0, 1], [0.5, 0.5], sample_weight=weights)


def test_labels_refusals():
    args = Y_TRUE, Y_PRED, ACCEPTED
    with pytest.raises(ValueError, match="must not repeat"):
        m.class_conditional_accuracy_score(*args, labels=[0, 0])
    with pytest.raises(ValueError, match="different kinds"):
        m.class_conditional_accuracy_score(*args, labels=["0", "1"])
    with pytest.raises(ValueError, match="replace_undefined_by"):
        m.selective_accuracy_score(*args, replace_undefined_by=2)
    with pytest.raises(ValueError, match="condition"):
        m.worst_conditional_accuracy_score(*args, condition="marginal")


# ------------------------------------------------------------------ risk-coverage
@st.composite
def ranked_cases(draw, max_rows=20, max_weight=3, min_weight=0):
    """Draw predictions with many ties in confidence, and weights."""
    n = draw(st.integers(1, max_rows))

    def lists(values):
        return np.array(draw(st.lists(values, min_size=n, max_size=n)))

    w = lists(st.integers(min_weight, max_weight))
    w[draw(st.integers(0, n - 1))] = 1
    return (
        lists(st.integers(0, 1)),
        lists(st.integers(0, 1)),
        lists(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        w,
    )


def brute_risk(errors, confidence, w, threshold):
    kept = confidence >= threshold
    return (w * errors)[kept].sum() / w[kept].sum()


@quick
@given(ranked_cases())
def test_curve_and_areas_by_definition(case):
    y_true, y_pred, confidence, w = case
    errors = y_true != y_pred
    coverage, risk, thresholds = m.risk_coverage_curve(
        y_true, y_pred, confidence, sample_weight=w
    )
    counted = w > 0
    np.testing.assert_array_equal(thresholds, np.unique(confidence[counted])[::-1])
    for point, value, threshold in zip(coverage, risk, thresholds, strict=True):
        kept = confidence >= threshold
        assert point == pytest.approx(w[kept].sum() / w.sum())
        assert value == pytest.approx(brute_risk(errors, confidence, w, threshold))
    assert coverage[-1] == 1
    own = [
        brute_risk(errors, confidence, w, t) if weight else 0.0
        for t, weight in zip(confidence, w, strict=True)
    ]
    got = m.aurc(y_true, y_pred, confidence, sample_weight=w)
    assert got == pytest.approx(np.average(own, weights=w))
    # Generalized risk: the chance that an error ranks above a random row, ties half.
    above = confidence[:, None] > confidence[None, :]
    tied = confidence[:, None] == confidence[None, :]
    pairs = (w * errors)[:, None] * w[None, :] * (above + tied / 2)
    got = m.augrc(y_true, y_pred, confidence, sample_weight=w)
    assert got == pytest.approx(pairs.sum() / w.sum() ** 2)


@quick
@given(ranked_cases())
def test_augrc_closed_form(case):
    y_true, y_pred, confidence, w = case
    right = y_true == y_pred
    accuracy = np.average(right, weights=w)
    auroc = 0.0
    if 0 < accuracy < 1:
        auroc = roc_auc_score(right, confidence, sample_weight=w)
    want = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    got = m.augrc(y_true, y_pred, confidence, sample_weight=w)
    assert got == pytest.approx(want)


@quick
@given(ranked_cases(max_rows=5, min_weight=1, max_weight=9))
def test_excess_is_over_the_best_of_all_rankings(case):
    y_true, y_pred, confidence, w = case
    best = min(
        m.aurc(y_true, y_pred, ranking, sample_weight=w)
        for ranking in permutations(range(len(w)))
    )
    got = m.excess_aurc(y_true, y_pred, confidence, sample_weight=w)
    want = m.aurc(y_true, y_pred, confidence, sample_weight=w) - best
    assert got == pytest.approx(want, abs=1e-12)
    assert got >= 0


@quick
@given(ranked_cases())
def test_ranked_weights_are_repetitions_and_only_order_counts(case):
    y_true, y_pred, confidence, w = case
    repeated = [np.repeat(values, w) for values in (y_true, y_pred, confidence)]
    for area in (m.aurc, m.augrc):
        got = area(y_true, y_pred, confidence, sample_weight=w)
        assert got == pytest.approx(area(*repeated))
    for area in RANKED[:3]:
        assert area(*repeated[:2], repeated[2]) == area(
            *repeated[:2], np.exp(repeated[2]) - 5
        )


def test_perfect_and_worst_ranking():
    y_true, y_pred = [0, 0, 0, 0], [0, 0, 0, 1]
    assert m.aurc(y_true, y_pred, [4, 3, 2, 1]) == 1 / 16
    assert m.excess_aurc(y_true, y_pred, [4, 3, 2, 1]) == 0
    assert m.aurc(y_true, y_pred, [1, 2, 3, 4]) == pytest.approx(
        (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    )
    assert m.aurc(y_true, y_true, [1, 2, 3, 4]) == 0
    assert m.augrc([0], [1], [0.5]) == 1 / 2
    assert m.aurc(["a", "b"], ["b", "a"], [1, 1]) == 1


@pytest.mark.parametrize("score", RANKED)
def test_ranked_refusals(score):
    with pytest.raises(ValueError, match="confidence has 1 rows where 2"):
        score([0, 1], [0, 1], [0.5])
    with pytest.raises(ValueError, match=r"confidence must hold finite numbers.*nan"):
        score([0, 1], [0, 1], [0.5, np.nan])
    with pytest.raises(ValueError, match="different kinds"):
        score([0, 1], ["0", "1"], [0.5, 0.5])


# -------------------------------------------------------------------- calibration
@pytest.mark.parametrize(
    ("confidences", "hits", "want"),
    [
        ([0.95, 1.0], [1, 0], 0.475),  # 1 shares the last bin
        ([0.0], [1], 1.0),  # 0 lies in the first
        ([1.0, 1.0], [1, 1], 0.0),
        ([0.5] * 4, [1, 0, 0, 0], 0.25),
        ([0.3, 0.25], [True, False], 0.225),  # 0.3 lies in (0.2, 0.3]
        ([0.3, 0.35], [1, 0], 0.525),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.longdouble])
def test_ece_values(confidences, hits, want, dtype):
    confidences = np.array(confidences, dtype=dtype)
    got = m.expected_calibration_error(hits, confidences)
    assert got == pytest.approx(want, abs=1e-12 + float(np.finfo(dtype).eps))


@st.composite
def calibration_cases(draw):
    n = draw(st.integers(1, 40))
    tenths = st.integers(0, 20).map(lambda k: k / 20)
    confidences = draw(st.lists(tenths | st.floats(0, 1), min_size=n, max_size=n))
    hits = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    weights = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    weights[0] = 1
    return np.array(hits), np.array(confidences), weights


def brute_ece(hits, confidences, w, bins):
    total = 0.0
    for b in set(bins):
        inside = bins == b
        mass = w[inside].sum()
        if mass:
            gap = (w * (hits - confidences))[inside].sum() / mass
            total += mass / w.sum() * abs(gap)
    return total


@quick
@given(calibration_cases(), st.integers(1, 12))
def test_ece_by_definition(case, n_bins):
    hits, confidences, w = case
    # Quantile: the share of the rows at or below, exactly.
    shares = [
        Fraction(int(w[confidences <= c].sum()), int(w.sum())) for c in confidences
    ]
    edges = np.linspace(0, 1, n_bins + 1)
    bins = {
        "uniform": np.array([(edges[1:-1] < c).sum() for c in confidences]),
        "quantile": np.array([max(-int(-s * n_bins // 1) - 1, 0) for s in shares]),
    }
    for strategy, members in bins.items():
        got = m.expected_calibration_error(
            hits, confidences, n_bins=n_bins, strategy=strategy, sample_weight=w
        )
        want = brute_ece(hits, confidences, w, members)
        assert got == pytest.approx(want, abs=1e-12)


@quick
@given(calibration_cases(), st.integers(1, 12))
def test_ece_bins_are_those_of_calibration_curve(case, n_bins):
    hits, confidences, _ = case
    accuracy, confidence = calibration_curve(hits, confidences, n_bins=n_bins)
    bins = np.searchsorted(np.linspace(0, 1, n_bins + 1)[1:-1], confidences)
    mass = np.unique(bins, return_counts=True)[1]
    want = np.average(np.abs(accuracy - confidence), weights=mass)
    got = m.expected_calibration_error(hits, confidences, n_bins=n_bins)
    assert got == pytest.approx(want, abs=1e-12)


def test_quantile_bins_hold_equal_mass():
    confidences = np.linspace(0, 1, 40) ** 3
    hits = np.ones(40)
    got = m.expected_calibration_error(hits, confidences, n_bins=4, strategy="quantile")
    want = np.mean([1 - part.mean() for part in np.split(confidences, 4)])
    assert got == pytest.approx(want)


def test_classwise_is_the_mean_of_one_against_rest():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(3), size=50)
    y = rng.integers(0, 3, size=50)
    names = np.array(["b", "a", "c"])
    for strategy in ("uniform", "quantile"):
        want = np.mean(
            [
                m.expected_calibration_error(y == c, proba[:, c], strategy=strategy)
                for c in range(3)
            ]
        )
        got = m.classwise_calibration_error(y, proba, strategy=strategy)
        assert got == pytest.approx(want)
        got = m.classwise_calibration_error(
            names[y], proba, labels=names, strategy=strategy
        )
        assert got == pytest.approx(want)


@pytest.mark.parametrize(
    ("hits", "confidences", "message"),
    [
        ([1], [0.5, 0.5], "confidences has 2 rows where 1"),
        ([1, 2], [0.5, 0.5], "hits must hold finite numbers between 0 and 1. Got 2"),
        ([1, 0.5], [0.5, 0.5], "hits must be 0 or 1.*0.5"),
        ([1, 0], [0.5, 1.5], "confidences must hold .* between 0 and 1. Got 1.5"),
        ([1, 0], [0.5, np.nan], "confidences must hold finite .* Got nan at index 1"),
        ([], [], "hits is empty"),
        (["yes", "no"], [0.5, 0.5], "hits must hold numbers"),
    ],
)
def test_ece_refusals(hits, confidences, message):
    with pytest.raises(ValueError, match=message):
        m.expected_calibration_error(hits, confidences)


@pytest.mark.parametrize(
    ("y_true", "proba", "labels", "message"),
    [
        ([0, 1], [0.5, 0.5], None, "y_proba must have the shape"),
        ([0, 1], [[0.5, 0.5]], None, "y_proba has 1 rows where 2"),
        ([0, 0], [[0.5, 0.5]] * 2, None, r"2 columns for the labels \[0\]"),
        ([0, 1], [[0.5, 0.5]] * 2, [0, 0], r"2 columns for the labels \[0, 0\]"),
        ([0, 2], [[0.5, 0.5]] * 2, [0, 1], r"not in labels: \[2\]"),
        ([0, 1], [[0.5, 0.5]] * 2, ["0", "1"], "different kinds"),
        ([0, 1], [[0.5, 1.5]] * 2, None, "y_proba must hold .* between 0 and 1"),
    ],
)
def test_classwise_refusals(y_true, proba, labels, message):
    with pytest.raises(ValueError, match=message):
        m.classwise_calibration_error(y_true, proba, labels=labels)


# ---------------------------------------------------------------------------- OOD
scores = st.lists(st.integers(-3, 3), min_size=1, max_size=15)


@quick
@given(scores, scores, st.sampled_from([0.05, 0.5, 0.7, 0.95, 1.0]))
def test_ood_by_definition(inside, outside, tpr):
    a, b = np.array(inside), np.array(outside)
    wins = (a[:, None] > b) + (a[:, None] == b) / 2
    assert m.ood_roc_auc_score(a, b) == pytest.approx(wins.mean())
    thresholds = [t for t in a if (a >= t).mean() >= tpr]
    want = (b >= max(thresholds)).mean()
    assert m.ood_fpr_at_tpr(inside, outside, tpr=tpr) == want


def test_fpr_at_tpr_counts_exact_multiples():
    inside = np.arange(20)  # 19 of 20 is 95 %: the threshold is 1
    assert m.ood_fpr_at_tpr(inside, [0.5, 1.0, 1.5, 2.0]) == 3 / 4


@pytest.mark.parametrize("score", [m.ood_roc_auc_score, m.ood_fpr_at_tpr])
def test_ood_refusals(score):
    with pytest.raises(ValueError, match="scores_ood is empty"):
        score([1, 2], [])
    with pytest.raises(ValueError, match="scores_in must hold finite numbers"):
        score([1, np.nan], [1])


@given(st.integers(1, 60), st.floats(0.01, 100), st.integers(0, 2**16))
def test_quantile_bins_do_not_depend_on_the_scale_of_the_weights(n_rows, scale, seed):
    random = np.random.RandomState(seed)
    hits, confidences = random.rand(n_rows) < 0.5, random.rand(n_rows).round(2)
    errors = [
        m.expected_calibration_error(
            hits, confidences, strategy="quantile", sample_weight=weight
        )
        for weight in (None, np.full(n_rows, scale))
    ]
    assert_allclose(errors[1], errors[0], rtol=1e-9)


def test_quantile_bins_of_huge_weights():
    error = m.expected_calibration_error(
        [1, 0, 1], [0.2, 0.5, 0.9], sample_weight=[5e307] * 3, strategy="quantile"
    )
    assert_allclose(error, (0.8 + 0.5 + 0.1) / 3)


@pytest.mark.parametrize("n_bins", [3, 12, 30, 49])
def test_uniform_bins_are_closed_on_the_right(n_bins):
    edges = np.arange(1, n_bins) / n_bins
    hits = np.zeros(n_bins - 1)
    # Just above an edge is the next bin; on it, the one below.
    bins = [
        assign_bins(values, hits, n_bins, "uniform")
        for values in (edges, np.nextafter(edges, 1))
    ]
    assert_array_equal(bins[0], np.arange(n_bins - 1))
    assert_array_equal(bins[1], np.arange(1, n_bins))


@pytest.mark.parametrize(
    ("y_true", "y_pred"),
    [
        (["a", "b", float("nan")], ["a", "b", "nan"]),
        (["a", 1, "b"], ["a", "1", "b"]),
        ([-1, 1, 1], np.array([False, True, True])),
    ],
)
def test_lists_do_not_turn_labels_into_others(y_true, y_pred):
    with pytest.raises(ValueError, match="must hold labels|different kinds"):
        m.selective_accuracy_score(y_true, y_pred, [True] * 3)


@pytest.mark.parametrize("values", [["0.9", "0.8"], [0.9j, 0.8]])
def test_confidences_that_are_no_numbers(values):
    with pytest.raises(ValueError, match="confidence must hold numbers"):
        m.aurc([0, 1], [0, 1], values)
