from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from sdm_sklearn._region import (
    CalibrationRows,
    Region,
    class_threshold,
    describe_missing_region,
    effective_sample_size,
    find_largest_alpha,
    find_region,
    in_region,
    quantile_index,
    rescale_similarity,
    smallest_sample,
    sort_by_class,
)

alphas = st.sampled_from([0.6, 0.75, 0.8, 0.9, 0.95, 0.99, 2 / 3, 0.6180339887])


def test_rescaled_similarity_by_hand():
    q = np.array([0.0, 2, 2, 7, 7])
    p = np.array([1.0, 0, 1, 0.5, 1])
    assert_allclose(rescale_similarity(q, p), [0, 1, 2, 3, 7])


@given(st.integers(0, 10**6), st.decimals("0.5001", "0.9999", places=4))
@example(9, 0.9)
@example(19, 0.95)
@example(99, 0.99)
@example(4, 0.8)
def test_quantile_index_is_exact(n, alpha):
    alpha = float(alpha)
    exact = (1 - Fraction(str(alpha))) * (n + 1) // 1
    assert quantile_index(n, alpha) == exact
    assert_array_equal(quantile_index(np.array([n, n]), alpha), [exact, exact])


@pytest.mark.parametrize(
    ("alpha", "n"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.8, 4), (0.5625, 2)]
)
def test_smallest_sample(alpha, n):
    assert smallest_sample(alpha) == n
    assert quantile_index(n - 1, alpha) == 0
    assert quantile_index(n, alpha) == 1


@pytest.mark.parametrize(("alpha", "n"), [(0.9, 10), (0.95, 20), (0.99, 100), (0.8, 5)])
def test_threshold_at_exact_multiples(alpha, n):
    values = np.linspace(0.9, 0.5, n)
    assert class_threshold(values, alpha) == values.min()


def test_threshold_by_hand():
    values = np.linspace(0.5, 0.9, 30)
    assert class_threshold(values, 0.9) == values[2]  # floor(0.1 * 31) = 3rd smallest
    assert class_threshold(values, 0.95) == values[0]
    assert class_threshold(values[:8], 0.9) == -np.inf  # 9 points are needed
    assert class_threshold(values[:0], 0.9) == -np.inf


def literal_algorithm(rows, n_classes, alpha):
    """Algorithm 1 as it is written: every candidate, every class, one quantile."""
    rescaled, probability, y = rows[:3]
    for q_star in np.unique(rescaled[rescaled > 0]):
        thresholds = [
            class_threshold(probability[(rescaled >= q_star) & (y == code)], alpha)
            for code in range(n_classes)
        ]
        if min(thresholds) >= alpha:
            return q_star, thresholds
    return np.inf, [np.inf] * n_classes


@st.composite
def calibration(draw):
    n, n_classes = draw(st.integers(0, 80)), draw(st.integers(2, 4))
    random = np.random.RandomState(draw(st.integers(0, 2**31 - 1)))
    y = random.randint(n_classes, size=n)
    # Few distinct values make ties; some q' are 0; high outputs make regions common.
    rescaled = random.randint(0, draw(st.integers(1, 30)) + 1, size=n) / 2
    probability = 1 - random.rand(n) ** draw(st.integers(1, 4)) * random.randint(
        0, 2, n
    )
    probability = np.round(probability, 2)
    # A true class with an output above 1/2 is the prediction; otherwise it may be.
    wrong = (probability <= 0.5) & (random.rand(n) < 0.8)
    prediction = np.where(wrong, (y + 1) % n_classes, y)
    of_prediction = np.where(wrong, 1 - probability * random.rand(n), probability)
    rows = CalibrationRows(rescaled, probability, y, prediction, of_prediction)
    return rows, n_classes


@given(calibration(), alphas)
def test_region_equals_the_literal_algorithm(data, alpha):
    region = find_region(*data, alpha)
    q_min, thresholds = literal_algorithm(*data, alpha)
    assert_array_equal(region.q_min, np.full(data[1], q_min))
    assert_array_equal(region.thresholds, thresholds)


@given(calibration(), st.randoms(use_true_random=False))
def test_region_does_not_depend_on_order(data, random):
    rows, n_classes = data
    order = np.array(random.sample(range(len(rows.y)), len(rows.y)), dtype=int)
    shuffled = CalibrationRows(*(values[order] for values in rows))
    for kind in ("joint", "per_class"):
        region = find_region(*data, 0.75, kind)
        again = find_region(shuffled, n_classes, 0.75, kind)
        assert_array_equal(again.q_min, region.q_min)
        assert_array_equal(again.thresholds, region.thresholds)


@given(calibration())
def test_largest_alpha_is_the_turning_point(data):
    largest = find_largest_alpha(*data)
    if np.isnan(largest):
        assert not find_region(*data, 0.5001).answered.any()
        return
    assert find_region(*data, largest).answered.all()
    if largest < 0.9999:
        assert not find_region(*data, largest + 1e-4).answered.any()


@given(calibration())
def test_largest_alpha_by_class_is_attained(data):
    largest = find_largest_alpha(*data, kind="per_class")
    if not np.isnan(largest):
        assert find_region(*data, largest, "per_class").answered.any()
    joint = find_largest_alpha(*data)
    assert np.isnan(joint) or largest >= joint


def literal_class_regions(rows, n_classes, alpha):
    """The two passes as they are described, one candidate at a time."""

    def first(code, extra):
        own = rows.y == code
        for q_star in np.unique(rows.rescaled_similarity[own]):
            inside = own & ((rows.rescaled_similarity >= q_star) | extra)
            threshold = class_threshold(rows.true_probability[inside], alpha)
            if q_star > 0 and threshold >= alpha:
                return q_star, threshold
        return np.inf, np.inf

    nobody = np.zeros(len(rows.y), dtype=bool)
    alone = np.array([first(code, nobody)[0] for code in range(n_classes)])
    mistaken = np.array(
        [
            rows.prediction[i] != rows.y[i]
            and rows.rescaled_similarity[i] >= alone[rows.prediction[i]]
            and rows.probability[i] >= alpha
            for i in range(len(rows.y))
        ],
        dtype=bool,
    )
    found = [first(code, mistaken) for code in range(n_classes)]
    return tuple(np.array(column) for column in zip(*found, strict=True))


@given(calibration(), alphas)
def test_class_regions_equal_their_description(data, alpha):
    region = find_region(*data, alpha, "per_class")
    q_min, thresholds = literal_class_regions(*data, alpha)
    assert_array_equal(region.q_min, q_min)
    assert_array_equal(region.thresholds, thresholds)


@given(calibration(), alphas)
def test_answered_classes_hold_alpha_on_their_calibration_rows(data, alpha):
    rows, n_classes = data
    region = find_region(*data, alpha, "per_class")
    assert_array_equal(region.answered, np.isfinite(region.q_min))
    assert (region.thresholds >= alpha).all()
    accepted = in_region(
        rows.rescaled_similarity,
        rows.rescaled_similarity,
        rows.probability,
        rows.prediction,
        region,
    )
    right = rows.prediction == rows.y
    for code in np.flatnonzero(region.answered):
        answered = accepted & (rows.y == code)
        assert right[answered].mean() >= alpha


def test_a_class_that_cannot_reach_alpha_leaves_the_others():
    n = 40
    y = np.repeat([0, 1], n)
    outputs = np.r_[np.full(n, 0.99), np.full(n, 0.6)]
    rows = CalibrationRows(np.full(2 * n, 5.0), outputs, y, y, outputs)
    assert not find_region(rows, 2, 0.9).answered.any()
    region = find_region(rows, 2, 0.9, "per_class")
    assert_array_equal(region.q_min, [5.0, np.inf])
    assert_array_equal(region.thresholds, [0.99, np.inf])


def test_errors_below_a_class_s_own_q_count_against_it():
    # Class 1 alone would start at q' = 2. But three of its rows at q' = 1 are accepted
    # as class 0, whose region starts there.
    q = np.r_[np.full(40, 1.0), np.full(20, 2.0), np.full(3, 1.0)]
    y = np.repeat([0, 1, 1], [40, 20, 3])
    prediction = np.repeat([0, 1, 0], [40, 20, 3])
    of_prediction = np.full(63, 0.95)
    true = np.where(prediction == y, 0.95, 0.05)
    rows = CalibrationRows(q, true, y, prediction, of_prediction)
    region = find_region(rows, 2, 0.9, "per_class")
    assert_array_equal(region.answered, [True, False])
    # With one such row its accuracy is above 0.9 still.
    rows = CalibrationRows(*(values[:61] for values in rows))
    assert find_region(rows, 2, 0.9, "per_class").answered.all()


def test_no_region_for_an_absent_class():
    ones, zeros = np.ones(50), np.zeros(50, int)
    rows = CalibrationRows(np.full(50, 9.0), ones, zeros, zeros, ones)
    region = find_region(rows, 2, 0.8)
    assert_array_equal(region.q_min, [np.inf, np.inf])
    assert_array_equal(region.thresholds, [np.inf, np.inf])
    assert_array_equal(find_region(rows, 2, 0.8, "per_class").answered, [True, False])


def test_membership_by_hand():
    region = Region(np.array([2.0, 3.0]), np.array([0.8, 0.9]))
    accepted = in_region(
        similarity=np.array([5, 5, 5, 5, 0]),
        rescaled_similarity=np.array([2, 1.9, 2.9, 3, 3]),
        probability=np.array([0.8, 0.99, 0.95, 0.79, 0.99]),
        prediction=np.array([0, 0, 1, 0, 0]),
        region=region,
    )
    assert_array_equal(accepted, [True, False, False, False, False])


def test_no_region_accepts_nothing():
    region = Region(*np.full((2, 2), np.inf))
    assert not in_region(
        *[np.array([1e9])] * 2, np.ones(1), np.array([0]), region
    ).any()


def test_effective_sample_size_by_hand():
    sizes = effective_sample_size(
        np.array([0.0, 2, 2.5, 9]),
        sort_by_class(
            np.array([3.0, 2, 1, 7, 2]), np.array([0, 0, 0, 1, 1]), n_classes=3
        ),
    )
    assert_array_equal(sizes, [[0, 0, 0], [1, 0, 0], [2, 1, 0], [2, 1, 0]])


def test_message_of_a_missing_region():
    classes = np.array(["a", "b", "c", "d", "e", "f", "g"])
    y = np.repeat(np.arange(7), [9, 8, 1, 1, 1, 1, 1])
    message = describe_missing_region(0.9, 0.75, y, classes, True, 0)
    assert "No region of the calibration half reaches alpha=0.9: every row" in message
    assert "Class 'b' has 8, 'c' has 1, 'd' has 1, 'e' has 1, 'f' has 1, ..." in message
    assert "this alpha needs at least 9 in every class" in message
    assert "The largest alpha attainable on this data is 0.75 (alpha_found_)" in message
    assert "Lower alpha, add labelled rows" in message
    assert 'region="per_class"' in message
    assert "set aside" not in message
    message = describe_missing_region(0.9, 0.75, y, classes, True, 30)
    assert "in every class (30 rows are set aside by certify_size). " in message
    y = np.repeat([0, 1], 50)
    message = describe_missing_region(0.6, np.nan, y, classes[:2], False, 0)
    assert "per_class" not in message
    assert "Lower alpha" not in message
    assert "Add labelled rows" in message
    assert "calibration rows" not in message
    assert "No alpha above 1/2 is attainable" in message
