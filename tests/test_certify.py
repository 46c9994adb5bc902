import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binom

from sdm_sklearn._certify import (
    Failure,
    Plan,
    certify_thresholds,
    count_allowed,
    expected_gain,
    find_first_failure,
    p_values,
    plan_joint,
    plan_per_class,
    predict_power,
    reject_in_sequence,
    run_plan,
    thresholds_by_accuracy,
    thresholds_by_share,
)
from sdm_sklearn._evidence import Scored, count_errors

INF = np.inf


def draw_rows(n, n_classes, seed, accuracy=0.97):
    """Rows whose predictions are the better the higher they score."""
    random = np.random.RandomState(seed)
    codes = random.randint(n_classes, size=n)
    score = random.rand(n)
    wrong = random.rand(n) > accuracy * (0.6 + 0.4 * score)
    y = np.where(wrong, (codes + 1 + random.randint(n_classes - 1, size=n)), codes)
    return Scored(codes, y % n_classes, score)


# Tests in order -----------------------------------------------------------------------


def test_p_value_by_hand():
    # Of 22 rows none is wrong: 0.9 ** 22.
    p = p_values(np.array([22, 0, 10]), np.array([0, 0, 10]), 0.9)
    assert_allclose(p, [0.9**22, 1, 1])


@pytest.mark.parametrize(
    ("p", "n_failures", "expected"),
    [
        ([0.01, 0.04, 0.2, 0.01], 0, [1, 1, 0, 0]),
        ([0.01, 0.04, 0.2, 0.01], 1, [1, 1, 0, 1]),
        ([0.2, 0.2, 0.01], 1, [0, 0, 0]),
        ([0.2, 0.01, 0.2, 0.01], 2, [0, 1, 0, 1]),
        ([], 0, []),
    ],
)
def test_sequence_by_hand(p, n_failures, expected):
    rejected = reject_in_sequence(np.array(p), 0.05, n_failures)
    assert_array_equal(rejected, np.array(expected, dtype=bool))


@given(st.lists(st.floats(0, 1), max_size=8), st.integers(0, 8))
def test_all_failures_allowed_is_bonferroni(p, more):
    p = np.array(p)
    assert_array_equal(reject_in_sequence(p, 0.1, len(p) + more), p <= 0.1)


@pytest.mark.parametrize("n_failures", [0, 1, 3])
def test_false_rejections_are_as_rare_as_promised(n_failures):
    # Uniform p-values, the worst case of a true hypothesis, between false ones.
    random = np.random.RandomState(0)
    level = 0.1 / (n_failures + 1)
    errors = 0
    for _ in range(4000):
        p = random.rand(8)
        p[[0, 2, 5]] *= 0.01
        true = np.ones(8, dtype=bool)
        true[[0, 2, 5]] = False
        errors += (reject_in_sequence(p, level, n_failures) & true).any()
    assert errors / 4000 <= 0.1 + 3 * np.sqrt(0.09 / 4000)
    assert errors / 4000 > 0.05


# Planning -----------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(2, 5), st.sampled_from([0.6, 0.8, 0.9]))
def test_candidates_are_nested_and_never_below_alpha(seed, n_classes, alpha):
    rows = draw_rows(200, n_classes, seed)
    for candidates in (thresholds_by_share, thresholds_by_accuracy):
        thresholds = candidates(rows, n_classes, alpha)
        assert thresholds.shape[1] == n_classes
        assert (thresholds >= alpha).all()
        assert (thresholds[1:] <= thresholds[:-1]).all()


def test_shares_by_hand():
    score = np.r_[np.linspace(0.9, 1, 100), np.full(5, 0.2)]
    rows = Scored(np.zeros(105, int), np.zeros(105, int), score)
    thresholds = thresholds_by_share(rows, 2, 0.9)
    assert_allclose(thresholds[0], [score[98], INF])
    assert_allclose(thresholds[-1], [0.9, INF])


def test_power_by_hand():
    # 21 rows cannot be enough for alpha = 0.9 at 0.1; 22 without error are.
    power = predict_power(np.array([[21, 22]]), np.zeros((1, 2), int), 1.0, 0.9, 0.1)
    assert power[0, 0] == 0
    n_prior = 43 / 0.5  # all rows, for half an error
    assert_allclose(power[0, 1], (22 + n_prior) / (44 + n_prior))
    assert_array_equal(predict_power(np.zeros(2), np.zeros(2), 1, 0.9, 0.1), 0)


def test_power_rises_with_rows_and_falls_with_errors():
    power = predict_power(np.full(6, 100), np.array([0, 1, 3, 6, 9, 20]), 1, 0.9, 0.1)
    assert (np.diff(power) < 0).all()
    few, many = (
        predict_power(np.array([n]), np.array([n // 25]), 1, 0.9, 0.1)[0]
        for n in (50, 500)
    )
    assert few < many


def test_expected_gain_by_hand():
    power, gain = np.array([0.5, 0.8]), np.array([10, 100])
    # Second reached only if the first passes, or in any case.
    assert_allclose(expected_gain(power, gain, 0), 5 + 0.5 * 80)
    assert_allclose(expected_gain(power, gain, 1), 5 + 80)
    assert expected_gain(power[:0], gain[:0], 0) == 0


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_plans_are_nested(seed, n_classes):
    rows = draw_rows(400, n_classes, seed)
    for make_plan in (plan_joint, plan_per_class):
        plan = make_plan(rows, n_classes, 0.8, 0.1, 1.0)
        rules = np.vstack([plan.thresholds, plan.path])
        # Elementwise, as inf - inf is no number.
        assert (rules[1:] <= rules[:-1]).all()
        answered = np.isfinite(plan.thresholds)
        assert_array_equal(
            np.isfinite(plan.path), np.tile(answered, (len(plan.path), 1))
        )
        assert_allclose(plan.level * (plan.n_failures + 1), 0.1)
    assert_array_equal(np.sort(plan.classes), np.flatnonzero(answered))


# Running a plan -----------------------------------------------------------------------


def rows_of(counts, score=0.95):
    """Rows from a table of counts: true class by row, prediction by column."""
    y, codes = (np.repeat(i.ravel(), counts.ravel()) for i in np.indices(counts.shape))
    return Scored(codes, y, np.full(len(y), score))


def make_plan(together, n_failures=0, path=(), level=0.1):
    return Plan(
        np.array([0, 1]),
        np.array([0.9, 0.9]),
        np.reshape(path, (-1, 2)),
        level,
        n_failures,
        together,
    )


def test_classes_stand_or_fall_together_in_a_joint_plan():
    good, bad = np.diag([30, 30]), np.diag([30, 10])
    assert_array_equal(run_plan(make_plan(True), rows_of(good), 0.9), [0.9, 0.9])
    assert_array_equal(run_plan(make_plan(True), rows_of(bad), 0.9), [INF, INF])
    assert_array_equal(run_plan(make_plan(False), rows_of(bad), 0.9), [0.9, INF])


def test_a_failure_that_is_allowed():
    bad = rows_of(np.diag([10, 30]))
    assert_array_equal(run_plan(make_plan(False), bad, 0.9), [INF, INF])
    assert_array_equal(run_plan(make_plan(False, 1), bad, 0.9), [INF, 0.9])


def test_class_conditional_accuracy_counts():
    # Every prediction of class 0 is right, but 10 of 40 rows of class 0 go to class 1.
    rows = rows_of(np.array([[30, 10], [0, 400]]))
    n, wrong = count_errors(rows, np.array([[0.9, 0.9]]))
    assert p_values(n, wrong, 0.9)[0, 0, 0] < 0.1
    assert_array_equal(run_plan(make_plan(False), rows, 0.9), [INF, INF])


def test_a_path_is_followed_to_its_first_failure():
    strict, loose = rows_of(np.diag([30, 30])), rows_of(np.full((2, 2), 20), 0.5)
    more = rows_of(np.diag([30, 30]), 0.7)
    rows = Scored(*map(np.concatenate, zip(strict, more, loose, strict=True)))
    path = [[0.6, 0.7], [0.4, 0.7], [0.7, 0.7]]
    found = run_plan(make_plan(True, path=path), rows, 0.9)
    assert_array_equal(found, [0.6, 0.7])


def test_a_plan_without_classes():
    plan = Plan(np.array([], int), np.full(2, INF), np.zeros((0, 2)), 0.1, 0, False)
    assert_array_equal(run_plan(plan, rows_of(np.diag([30, 30])), 0.9), [INF, INF])


# The whole ----------------------------------------------------------------------------


def test_what_cannot_be_certified_is_rejected():
    good = rows_of(np.diag([30, 30]))
    for per_class in (False, True):
        few = certify_thresholds(good, rows_of(np.diag([9, 9])), 2, 0.9, 0.9, per_class)
        assert_array_equal(few[0], [INF, INF])
        thresholds, level = certify_thresholds(good, good, 2, 0.9, 0.9, per_class)
        # All scores are 0.95; the most lenient share is everything from alpha on.
        assert_array_equal(thresholds, [0.95, 0.95] if per_class else [0.9, 0.9])
        assert np.isclose(level, [0.1, 0.05]).any()
        nothing = Scored(*(values[:0] for values in good))
        for planning, certify in ((nothing, good), (good, nothing)):
            found = certify_thresholds(planning, certify, 2, 0.9, 0.9, per_class)[0]
            assert_array_equal(found, [INF, INF])


@pytest.mark.parametrize("per_class", [False, True])
def test_tells_which_statement_failed_first(per_class):
    def fail(confusion, planning=30):
        planning = rows_of(np.diag([planning, planning]))
        rows = rows_of(np.array(confusion))
        return find_first_failure(planning, rows, 2, 0.9, 0.9, per_class)

    assert fail([[40, 0], [0, 40]]) is None
    # By class the first one fails, in its predictions; together the worse one counts.
    expected = Failure(1, "class", 38, 5, 1)
    if per_class:
        expected = Failure(0, "prediction", 43, 5, 1)
    assert fail([[38, 0], [5, 33]]) == expected
    assert fail([[40, 0], [0, 9]]) == Failure(1, "prediction", 9, 0, -1)
    # A plan without a class that may pass has no first test.
    assert (fail([[40, 0], [0, 9]], planning=3) is None) == per_class


def test_counts_allowed_errors():
    n = np.arange(200)
    allowed = count_allowed(n, 0.9, 0.1)
    some = allowed >= 0
    assert_array_equal(some, n >= 22)
    assert (p_values(n, allowed, 0.9)[some] <= 0.1).all()
    assert (p_values(n, allowed + 1, 0.9) > 0.1).all()


@given(st.integers(0, 10**6), st.integers(2, 4), st.booleans())
def test_certified_statements_have_small_p_values(seed, n_classes, per_class):
    planning, certify = (draw_rows(600, n_classes, seed + i) for i in (0, 1))
    thresholds, level = certify_thresholds(
        planning, certify, n_classes, 0.75, 0.9, per_class
    )
    answered = np.isfinite(thresholds)
    n, wrong = count_errors(certify, thresholds[np.newaxis])
    assert (binom.cdf(wrong, n, 0.25)[:, 0, answered] <= level + 1e-12).all()
    assert per_class or answered.all() or not answered.any()


def test_a_minority_that_cannot_reach_alpha_leaves_the_majority():
    random = np.random.RandomState(0)
    codes = (random.rand(2000) < 0.1).astype(int)
    wrong = random.rand(2000) < np.where(codes == 0, 0.01, 0.4)
    rows = Scored(codes, np.where(wrong, 1 - codes, codes), np.full(2000, 0.95))
    halves = [
        Scored(*(values[part] for values in rows))
        for part in (slice(1000), slice(1000, None))
    ]
    joint = certify_thresholds(*halves, 2, 0.9, 0.9, per_class=False)[0]
    assert_array_equal(joint, [INF, INF])
    by_class = certify_thresholds(*halves, 2, 0.9, 0.9, per_class=True)[0]
    assert_array_equal(by_class, [0.95, INF])


def load_benchmark():
    path = Path(__file__).parent.parent / "benchmarks" / "certificate_coverage.py"
    spec = importlib.util.spec_from_file_location("certificate_coverage", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("imbalance", [1, 20])
@pytest.mark.parametrize("n_classes", [2, 10])
def test_certificates_are_wrong_as_rarely_as_promised(n_classes, imbalance, per_class):
    # A fast version of benchmarks/certificate_coverage.py: three standard errors above
    # one in ten are allowed.
    coverage = load_benchmark()
    draws = 60
    for kind in ("edge", "mixed"):
        population = coverage.make_population(n_classes, imbalance, kind, 0.9, 5000)
        rate, _ = coverage.rate_of_wrong(
            population, n_classes, 600, draws, 0.9, 0.9, per_class
        )
        assert rate <= 0.1 + 3 * np.sqrt(0.09 / draws)
