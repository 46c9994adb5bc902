import numpy as np
import pandas
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.utils import Bunch

from sdm_sklearn._certify import Failure
from sdm_sklearn._evidence import (
    Scored,
    as_region,
    count_accepted,
    count_errors,
    describe_missing_certificate,
    describe_thin_evidence,
    report_region,
    score_calibration,
    tabulate_certificate,
)
from sdm_sklearn._region import CalibrationRows, Region, in_region

CLASSES = np.array(["ant", "bee"])


def make_model(n_right, n_wrong):
    """A model whose calibration half is accepted by thresholds of 0.9."""
    n = n_right + n_wrong
    y = np.arange(n) % 2
    prediction = np.where(np.arange(n) < n_wrong, 1 - y, y)
    rows = CalibrationRows(
        np.full(n, 1.0), np.full(n, 0.95), y, prediction, np.full(n, 0.95)
    )
    return Bunch(calibration_rows=rows, n_classes=2)


def make_region(n_classes=2):
    return Region(np.full(n_classes, 1.0), np.full(n_classes, 0.9))


def test_counts_by_hand():
    rows = Scored(
        codes=np.array([0, 0, 0, 1, 1]),
        y=np.array([0, 1, 0, 1, 0]),
        score=np.array([0.9, 0.8, 0.2, 0.9, 0.5]),
    )
    n, wrong = count_errors(rows, np.array([[0.9, 0.9], [0.5, 0.5], [0.0, np.inf]]))
    assert_array_equal(n[0], [[1, 1], [2, 2], [3, 0]])  # by prediction
    assert_array_equal(n[1], [[1, 1], [2, 2], [2, 1]])  # by class
    assert_array_equal(wrong[0], [[0, 0], [1, 1], [1, 0]])
    assert_array_equal(wrong[1], [[0, 0], [1, 1], [0, 1]])
    n, wrong = count_accepted(rows.codes, rows.y, rows.score > 0.5, 3)
    assert_array_equal(n, [[2, 1, 0], [1, 2, 0]])
    assert_array_equal(wrong, [[1, 0, 0], [0, 1, 0]])


def test_counts_without_levels():
    rows = Scored(*[np.zeros(2, int)] * 2, np.ones(2))
    n, wrong = count_errors(rows, np.zeros((0, 3)))
    assert n.shape == wrong.shape == (2, 0, 3)


def test_a_score_threshold_is_the_region_of_rows_with_support():
    region = as_region(np.array([0.7, np.inf]))
    assert_array_equal(region.q_min, [1, np.inf])
    accepted = in_region(
        similarity=np.array([1, 0, 1, 1]),
        rescaled_similarity=np.array([1.0, 0, 1, 1]),
        probability=np.array([0.7, 0.99, 0.69, 0.99]),
        prediction=np.array([0, 0, 0, 1]),
        region=region,
    )
    assert_array_equal(accepted, [True, False, False, False])


def test_certificate_by_hand():
    codes = np.r_[np.zeros(23, int), np.ones(2, int)]
    y = np.r_[np.zeros(22, int), np.ones(3, int)]
    accepted = np.arange(25) > 0
    answered = np.array([True, False])
    table = tabulate_certificate(codes, y, accepted, CLASSES, answered, 0.9, 0.1)
    assert_array_equal(table["class"], ["ant", "bee", "ant", "bee"])
    assert_array_equal(table["answered"], [True, False, True, False])
    assert_array_equal(table["kind"], ["prediction"] * 2 + ["class"] * 2)
    assert_array_equal(table["n"], [22, 2, 21, 3])
    assert_allclose(table["accuracy"], [21 / 22, 1, 1, 2 / 3])
    # Without an error the bound is the n-th root of 0.1.
    assert_allclose(table["bound"][1:3], [0.1 ** (1 / 2), 0.1 ** (1 / 21)])
    assert repr(table) == "0 of 2 classes hold 0.9"
    frame = pandas.DataFrame(table)
    assert frame.shape == (4, 7)
    none = np.full(25, False)
    nothing = tabulate_certificate(codes, y, none, CLASSES, answered, 0.9, 0.1)
    assert np.isnan(nothing["accuracy"]).all()
    assert_array_equal(nothing["bound"], 0)


def test_the_verdict_counts_classes_with_both_bounds():
    codes, all_ = np.repeat([0, 1], 30), np.full(60, True)
    table = tabulate_certificate(codes, codes, all_, CLASSES, all_[:2], 0.9, 0.1)
    assert repr(table) == "2 of 2 classes hold 0.9"
    assert len(repr(table)) < 30


def test_report_by_hand():
    report = report_region(make_model(18, 2), make_region(), CLASSES)
    assert_array_equal(report["class"], CLASSES)
    assert_array_equal(report["answered"], [True, True])
    assert_array_equal(report["n_calibration"], [10, 10])
    assert_array_equal(report["n_predicted"], [10, 10])
    assert_allclose(report["prediction_accuracy"], [0.9, 0.9])
    assert_allclose(report["class_accuracy"], [0.9, 0.9])
    half = Region(np.array([1, np.inf]), np.array([0.9, np.inf]))
    report = report_region(make_model(18, 2), half, CLASSES)
    assert_array_equal(report["answered"], [True, False])
    assert_array_equal(report["n_predicted"], [10, 0])
    assert_array_equal(report["n_of_class"], [9, 1])


@pytest.mark.parametrize(
    ("n_right", "n_wrong", "thin"),
    [(21, 0, True), (22, 0, False), (40, 2, True), (60, 2, False), (0, 0, False)],
)
def test_thin_evidence(n_right, n_wrong, thin):
    # Alone, 22 rows without an error show 0.9 at confidence 0.9; with two errors it
    # takes 52.
    model = make_model(n_right, n_wrong)
    message = describe_thin_evidence(model, make_region(), 0.9, 0.9)
    assert (message is not None) == thin
    if thin:
        assert f"accepts {n_right + n_wrong} rows" in message
        assert f"{n_wrong} of them wrong" in message
        assert 'guarantee="certified"' in message


def test_a_region_picked_among_many_needs_more_evidence():
    model = make_model(50, 0)
    assert describe_thin_evidence(model, make_region(), 0.9, 0.9) is None
    q = np.arange(1.0, 51)
    model.calibration_rows = model.calibration_rows._replace(rescaled_similarity=q)
    assert describe_thin_evidence(model, make_region(), 0.9, 0.9) is None
    # The 30th region tried accepts 21 rows.
    late = Region(np.full(2, 30.0), np.full(2, 0.9))
    message = describe_thin_evidence(model, late, 0.9, 0.9)
    assert "accepts 21 rows" in message
    assert "the last of 30 regions tried" in message


def test_message_of_a_missing_certificate():
    counts = np.array([30, 7])

    def describe(joint, failure=None):
        return describe_missing_certificate(0.9, 0.9, counts, CLASSES, joint, failure)

    message = describe(joint=True)
    assert "No class is certified to reach alpha=0.9 at confidence 0.9" in message
    assert "at least 22 accepted certify rows" in message
    assert "class 'bee' has 7 in all" in message
    assert 'region="per_class"' in message
    message = describe(joint=False)
    assert "per_class" not in message
    assert "Lower alpha or confidence" in message
    counts = np.array([30, 23])
    assert "gives no class a fair chance of that" in describe(joint=False)
    message = describe(True, Failure(1, "class", 23, 4, 0))
    assert (
        "of 23 accepted certify rows of class 'bee' 4 are wrong, and at most 0 may be."
        in message
    )
    message = describe(True, Failure(0, "prediction", 18, 0, -1))
    assert (
        "of 18 accepted certify rows predicted as class 'ant' 0 are wrong, and 18 rows "
        "are too few." in message
    )


def test_scores_of_the_calibration_half():
    rows = CalibrationRows(
        np.array([0.0, 2]), np.ones(2), np.zeros(2, int), np.zeros(2, int), np.ones(2)
    )
    assert_array_equal(score_calibration(Bunch(calibration_rows=rows)).score, [0, 1])
