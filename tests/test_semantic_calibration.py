"""Prior step, scaling and certified threshold of SemanticSoftmaxCalibrator."""

import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from scipy.special import log_softmax, softmax
from scipy.stats import beta

from sdm_sklearn import SemanticSoftmaxCalibrator
from sdm_sklearn._semantic_calibration import (
    bounded_log_softmax,
    certified_threshold,
    fit_scaling,
    held_out_proba,
    match_prior,
)


def biased(n=600, L=3, seed=0, shift=(3.0, 0.0, -3.0), temperature=0.5):
    """Logits of a sound posterior, then biased and sharpened; and the labels."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.standard_normal((n, L))
    levels = softmax(logits, axis=1).cumsum(axis=1)
    y = (rng.uniform(size=(n, 1)) > levels[:, :-1]).sum(axis=1)
    return (logits + np.asarray(shift)[:L]) / temperature, y


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n_labels=st.integers(2, 6),
    sharpness=st.sampled_from([0.1, 1.0, 10.0]),
)
def test_the_prior_step_matches_the_mean_prediction(seed, n_labels, sharpness):
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((50, n_labels)) + 3 * rng.standard_normal(n_labels)
    log_proba = np.maximum(log_softmax(sharpness * noise, axis=1), np.log(1e-15))
    prior = rng.dirichlet(np.full(n_labels, 5.0))
    bias = match_prior(log_proba, prior)
    got = softmax(log_proba + bias, axis=1).mean(axis=0)
    np.testing.assert_allclose(got, prior, atol=1e-6)
    np.testing.assert_allclose(bias.sum(), 0, atol=1e-9)


def test_the_prior_step_by_hand():
    # One row: the bias turns its probabilities into the prior.
    bias = match_prior(np.log([[0.8, 0.2]]), np.array([0.5, 0.5]))
    np.testing.assert_allclose(bias, [-np.log(2), np.log(2)], atol=1e-8)


@pytest.mark.parametrize(
    "prior", ["uniform", [1 / 3] * 3, {2: 1 / 3, 0: 1 / 3, 1: 1 / 3}]
)
def test_prior_forms_agree_and_undo_a_label_bias(prior):
    X, y = biased()
    plain = SemanticSoftmaxCalibrator([0, 1, 2], input="logits").fit(X)
    assert not plain.prior_bias_.any()
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", prior=prior).fit(X)
    np.testing.assert_allclose(cal.predict_proba(X).mean(axis=0), 1 / 3, atol=1e-7)
    np.testing.assert_allclose(cal.prior_bias_, [-6, 0, 6], atol=0.6)
    assert (cal.predict(X) == y).mean() > (plain.predict(X) == y).mean() + 0.15


@pytest.mark.parametrize(
    ("labels", "prior", "message"),
    [
        ([0, 1, 2], [0.5, 0.5], r"3 positive shares .* Got \[0.5, 0.5\]"),
        ([0, 1, 2], [0.5, 0.5, 0.0], "positive shares"),
        ([0, 1, 2], [0.5, 0.5, 0.5], r"sum to 1\. .* whose sum is 1.5: divide them by"),
        ([0, 1, 2], [0.333, 0.333, 0.333], r"whose sum is 0\.999: divide them by it"),
        ([0, 1, 2], [0.5, 0.5, np.inf], "positive shares"),
        ([0, 1, 2], [0.5, 0.5, np.nan], "positive shares"),
        ([0, 1, 2], ["a", "b", "c"], r"Got \['a', 'b', 'c'\]"),
        ([0, 1, 2], [[0.2, 0.3, 0.5]], "3 positive shares"),
        ([0, 1, 2], {0: 0.5, 1: 0.5}, r"each of the classes \[0, 1, 2\]"),
        ({"b": 0, "a": 1}, [0.5, 0.5], "ambiguous .*'a', 'b'.* pass a dict"),
    ],
)
def test_bad_priors_are_named(labels, prior, message):
    cal = SemanticSoftmaxCalibrator(labels, input="logits", prior=prior)
    with pytest.raises(ValueError, match=message):
        cal.fit(np.zeros((4, 3)))


def test_sorted_labels_may_have_an_array_prior():
    cal = SemanticSoftmaxCalibrator({"a": 0, "b": 1}, input="logits", prior=[0.9, 0.1])
    proba = cal.fit(np.zeros((10, 3))).predict_proba(np.zeros((1, 3)))
    np.testing.assert_allclose(proba, [[0.9, 0.1]])


@pytest.mark.parametrize(("n", "few"), [(1, True), (14, True), (15, False)])
def test_a_prior_on_few_rows_is_warned_of(n, few):
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", prior="uniform")
    X = np.random.default_rng(0).standard_normal((n, 3))
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        cal.fit(X)
    messages = [str(w.message) for w in record]
    assert len(messages) == few
    if few:
        assert f"on {n} row(s) of X, fewer than 5 for each of the 3" in messages[0]
        assert record[0].filename == __file__


def test_a_series_as_prior_goes_by_its_index():
    pd = pytest.importorskip("pandas")
    X, _ = biased()
    shares = pd.Series([0.6, 0.3, 0.1], index=["c", "a", "b"])
    cal = SemanticSoftmaxCalibrator({"a": 0, "b": 1, "c": 2}, input="logits")
    got = cal.set_params(prior=shares).fit(X).predict_proba(X).mean(axis=0)
    np.testing.assert_allclose(got, [0.3, 0.1, 0.6], atol=1e-7)
    with pytest.raises(ValueError, match="a share to each of the classes"):
        cal.set_params(prior=pd.Series([0.6, 0.3, 0.1])).fit(X)


def test_labels_of_one_class_are_refused_and_absent_classes_named():
    X, y = biased(n=60)
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=0.6)
    with pytest.raises(ValueError, match=r"one class only, 1: .* \[0, 1, 2\]"):
        cal.fit(X, np.ones(60, dtype=int))
    kept = y != 2
    with pytest.warns(UserWarning, match=r"no row of the class\(es\) \[2\]") as record:
        cal.fit(X[kept], y[kept])
    assert record[0].filename == __file__
    cal.set_params(calibration=None).fit(X[kept], y[kept])


def test_small_probabilities_are_not_flattened():
    log_proba = log_softmax([[0.0, -40.0, -1000.0]], axis=1)
    np.testing.assert_array_equal(bounded_log_softmax(log_proba), log_proba)
    gone = bounded_log_softmax(np.array([[0.0, -np.inf, -5.0], [0.0, -np.inf, -90.0]]))
    np.testing.assert_allclose(gone[:, 1], [np.log(1e-15), -90.0])
    assert np.isfinite(bounded_log_softmax(np.array([[1e308, -1e308, 0.0]]))).all()
    # A prior moves the labels; it does not undo what separates them.
    rng = np.random.default_rng(0)
    X = np.vstack([100 * rng.standard_normal((50, 3)), [[0.0, -40.0, -1000.0]]])
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", prior="uniform").fit(X)
    np.testing.assert_allclose(
        np.diff(cal.predict_log_proba(X[-1:]))[0, 0],
        -40 + np.diff(cal.prior_bias_)[0],
        rtol=1e-9,
    )


@pytest.mark.parametrize("bias", [True, False])
def test_scaling_is_at_the_maximum_of_the_posterior(bias):
    X, y = biased()
    log_proba = log_softmax(X, axis=1)

    def loss(parameters):
        shift = parameters[1:] if bias else 0.0
        log_p = log_softmax(log_proba * np.exp(-parameters[0]) + shift, axis=1)
        return -log_p[np.arange(len(y)), y].sum() + parameters @ parameters / 2

    temperature, found = fit_scaling(log_proba, y, bias)
    at = np.concatenate([[np.log(temperature)], found if bias else []])
    np.testing.assert_allclose(approx_fprime(at, loss, 1e-6), 0, atol=2e-2)
    assert bias or not found.any()


def test_scaling_finds_what_was_done_to_the_logits():
    X, y = biased(n=4000)
    temperature, bias = fit_scaling(log_softmax(X, axis=1), y, True)
    assert temperature == pytest.approx(2.0, rel=0.1)
    np.testing.assert_allclose(bias - bias.mean(), [-3, 0, 3], atol=0.3)


def test_calibration_modes():
    X, y = biased(n=300)
    names = {"input": "logits", "alpha": 0.6}
    made = {
        mode: SemanticSoftmaxCalibrator([0, 1, 2], calibration=mode, **names).fit(X, y)
        for mode in ("auto", "bcts", "temperature", None)
    }
    assert made["auto"].bias_.tolist() == made["bcts"].bias_.tolist()
    assert made["bcts"].bias_.any()
    assert not made["temperature"].bias_.any()
    assert made["temperature"].temperature_ > 1
    assert made[None].temperature_ == 1
    losses = [
        -cal.predict_log_proba(X)[np.arange(300), y].mean() for cal in made.values()
    ]
    assert losses[1] < losses[2] < losses[3]


def test_scaling_follows_the_prior_step():
    X, y = biased(n=300)
    both = SemanticSoftmaxCalibrator(
        [0, 1, 2], input="logits", prior="uniform", alpha=0.6
    ).fit(X, y)
    prior = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", prior="uniform")
    np.testing.assert_array_equal(both.prior_bias_, prior.fit(X).prior_bias_)
    expected = fit_scaling(prior.predict_log_proba(X), y, True)
    assert both.temperature_ == pytest.approx(expected[0], rel=1e-6)
    np.testing.assert_allclose(
        both.predict_proba(X),
        softmax(prior.predict_log_proba(X) / both.temperature_ + both.bias_, axis=1),
        atol=1e-9,
    )


@pytest.mark.parametrize("mode", ["temperature", "bcts"])
def test_calibration_without_labels_is_named(mode):
    cal = SemanticSoftmaxCalibrator([0, 1], input="logits", calibration=mode)
    with pytest.raises(ValueError, match=f"calibration='{mode}' .* got no y"):
        cal.fit(np.zeros((2, 2)))


def test_fit_without_labels_trains_nothing():
    X, _ = biased()
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits").fit(X[:1])
    assert (cal.temperature_, cal.threshold_) == (1.0, 0.95)
    assert not cal.bias_.any()
    np.testing.assert_array_equal(cal.predict_proba(X), softmax(X, axis=1))


def test_published_zeros_can_be_calibrated():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((80, 60)), rng.integers(0, 2, 80)
    cal = SemanticSoftmaxCalibrator.published(
        [0, 1],
        rng.standard_normal((60, 30)),
        input="logits",
        top_k=5,
        prior="uniform",
        calibration="bcts",
        alpha=0.6,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        proba = cal.fit(X, y).predict_proba(X)
    assert np.isfinite(np.log(proba)).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), alpha=st.sampled_from([0.55, 0.8, 0.95]))
def test_some_thresholds_share_the_level(seed, alpha):
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 400)
    confidence = np.round(rng.uniform(0.3, 1, n), 2)  # with ties
    correct = rng.uniform(size=n) < confidence
    falling = np.sort(confidence)[::-1]
    tested, count = {falling[-1]}, n / 2**0.5
    while count >= np.log(0.05) / np.log(alpha):
        tested.add(falling[int(count) - 1])
        count /= 2**0.5
    found = np.inf
    for t in tested:
        hits, above = correct[confidence >= t].sum(), (confidence >= t).sum()
        level = 0.05 / len(tested)
        bound = beta.ppf(level, hits, above - hits + 1) if hits else 0.0
        found = min(found, t if bound >= alpha else np.inf)
    assert certified_threshold(confidence, correct, alpha) == found


@pytest.mark.parametrize("n", [300, 5000])
@pytest.mark.parametrize("alpha", [0.8, 0.95])
def test_a_threshold_is_wrong_no_more_often_than_promised(n, alpha):
    """Nothing tells right from wrong, and the accuracy is a hair too low."""
    rng = np.random.default_rng(0)
    wrong = [
        np.isfinite(
            certified_threshold(rng.random(n), rng.random(n) < alpha - 0.001, alpha)
        )
        for _ in range(400)
    ]
    assert np.mean(wrong) <= 0.05


def test_threshold_needs_enough_rows():
    # All of n rows right: the bound is .05 ** (1 / n), and .95 needs n = 59.
    for n, found in ((58, np.inf), (59, 0.7)):
        assert certified_threshold(np.full(n, 0.7), np.ones(n, bool), 0.95) == found


def test_rows_equal_but_for_rounding_are_certified_together():
    # With the last row, wrong and within rounding, the bound is below .95.
    confidence = np.r_[np.full(59, 0.7), 0.7 - 1e-15]
    correct = np.r_[np.ones(59, bool), False]
    assert certified_threshold(confidence, correct, 0.95) == np.inf


def test_each_row_is_scaled_by_the_others():
    X, y = biased(n=40)
    log_proba = log_softmax(X, axis=1)
    whole = fit_scaling(log_proba, y, True)
    seen = softmax(log_proba / whole[0] + whole[1], axis=1)
    held_out = held_out_proba(log_proba, y, True)
    rows = np.arange(40)
    np.testing.assert_allclose(held_out.sum(axis=1), 1)
    assert np.log(held_out[rows, y]).mean() < np.log(seen[rows, y]).mean()
    # A row's own label has no say.
    other = y.copy()
    other[7] = (y[7] + 1) % 3
    np.testing.assert_array_equal(
        held_out_proba(log_proba, other, True)[7], held_out[7]
    )


@pytest.mark.parametrize("n_repeats", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_accepted_accuracy_reaches_alpha_with_many_labels(n_repeats):
    """BCTS has as many biases as labels: a threshold must not be learnt beside it."""
    held = []
    for seed in range(n_repeats):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 50, 1700)
        X = rng.normal(size=(1700, 50))
        X[np.arange(1700), y] += 2.2
        cal = SemanticSoftmaxCalibrator(list(range(50)), input="logits", alpha=0.7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            cal.fit(3 * X[:200], y[:200])
            labels, accepted = cal.predict_selective(3 * X[200:], return_mask=True)
        held.append(not accepted.any() or (labels == y[200:])[accepted].mean() >= 0.7)
    assert np.mean(held) >= 0.95


def test_threshold_of_no_rows():
    nothing = np.zeros(0)
    assert certified_threshold(nothing, nothing.astype(bool), 0.9) == np.inf


def test_uncertified_alpha_warns_once_asked_and_rejects_every_row():
    X, y = biased(n=200)
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=0.99)
    cal.fit(X, y)  # nobody selects yet, as in a search
    assert cal.threshold_ == np.inf
    message = r"accuracy of alpha=0.99 on the 200 .* every row is rejected"
    with pytest.warns(UserWarning, match=message) as record:
        assert (cal.predict_selective(X) == -1).all()
    assert record[0].filename == __file__
    with pytest.warns(UserWarning, match="accuracy of alpha=0.98 "):
        cal.predict_selective(X, alpha=0.98)
    # What the message names is within reach, a little more is not.
    named = float(re.search(r"certify alpha=([\d.]+)", str(record[0].message))[1])
    assert cal.predict_selective(X, alpha=named, return_mask=True)[1].any()
    with pytest.warns(UserWarning, match="No threshold certifies"):
        cal.predict_selective(X, alpha=named + 0.001)


def test_nothing_above_one_half_may_be_within_reach():
    y = np.tile([0, 1], 10)
    X = np.zeros((20, 2))
    cal = SemanticSoftmaxCalibrator([0, 1], input="logits").fit(X, y)
    with pytest.warns(UserWarning, match="can certify no alpha above 1/2"):
        cal.predict_selective(X)


def test_many_alphas_are_decided_at_once():
    X, y = biased(n=400)
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits").fit(X, y)
    codes, accepted = cal._decide_at(X, [0.6, 0.7, 0.999])
    assert accepted.shape == (3, 400)
    for alpha, mask in zip([0.6, 0.7], accepted, strict=False):
        labels, expected = cal.predict_selective(X, alpha=alpha, return_mask=True)
        np.testing.assert_array_equal(mask, expected)
        np.testing.assert_array_equal(labels[mask], codes[mask])
    assert not accepted[2].any()


def test_another_alpha_needs_no_refit():
    X, y = biased(n=500)
    fitted = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=0.8).fit(X, y)
    other = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=0.7).fit(X, y)
    np.testing.assert_array_equal(
        fitted.predict_selective(X, alpha=0.7), other.predict_selective(X)
    )
    assert fitted.threshold_ > other.threshold_


def test_fit_rows_on_the_threshold_are_accepted():
    X, y = biased(n=2000)
    cal = SemanticSoftmaxCalibrator(
        [0, 1, 2], input="logits", alpha=0.52, calibration=None
    ).fit(X, y)
    confidence = cal.predict_proba(X).max(axis=1)
    assert (confidence == cal.threshold_).any()
    accepted = cal.predict_selective(X, return_mask=True)[1]
    one_by_one = [cal.predict_selective(x[None], return_mask=True)[1][0] for x in X]
    np.testing.assert_array_equal(accepted, confidence >= cal.threshold_)
    np.testing.assert_array_equal(one_by_one, accepted)


def test_without_labels_selection_promises_nothing():
    X = np.log([[0.9, 0.1], [0.6, 0.4]])
    cal = SemanticSoftmaxCalibrator([0, 1], input="logits", alpha=0.8).fit(X)
    with pytest.warns(UserWarning, match="no y.*promises no accuracy") as record:
        assert cal.predict_selective(X).tolist() == [0, -1]
    assert record[0].filename == __file__
    with pytest.warns(UserWarning, match="promises no accuracy"):
        assert cal.predict_selective(X, alpha=0.55).tolist() == [0, 0]


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, np.nan, "0.9", None])
def test_alpha_is_an_accuracy(alpha):
    cal = SemanticSoftmaxCalibrator([0, 1], input="logits", alpha=alpha)
    with pytest.raises(ValueError, match="alpha must be an accuracy"):
        cal.fit(np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("alpha", "some"),
    [
        (0.8, 0.1),
        pytest.param(0.7, 0.4, marks=pytest.mark.slow),
        pytest.param(0.9, 0.005, marks=pytest.mark.slow),
    ],
)
def test_accepted_accuracy_reaches_alpha(alpha, some):
    """On exchangeable data, with temperature, biases and threshold from 300 rows."""
    held, coverage = [], []
    for seed in range(200):
        X, y = biased(n=1300, seed=seed)
        cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=alpha)
        cal.fit(X[:300], y[:300])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            labels, accepted = cal.predict_selective(X[300:], return_mask=True)
        coverage.append(accepted.mean())
        held.append(not accepted.any() or (labels == y[300:])[accepted].mean() >= alpha)
    assert np.mean(held) >= 0.95
    assert np.mean(coverage) > some
