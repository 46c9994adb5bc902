"""Prior step, scaling and certified threshold of SemanticSoftmaxCalibrator."""

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
    certified_threshold,
    fit_scaling,
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
        ([0, 1, 2], [0.5, 0.5, 0.5], "sum to 1"),
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
    proba = cal.fit(np.zeros((4, 3))).predict_proba(np.zeros((1, 3)))
    np.testing.assert_allclose(proba, [[0.9, 0.1]])


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


def bound(hits, count):
    return 0.0 if hits == 0 else beta.ppf(0.05, hits, count - hits + 1)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), alpha=st.sampled_from([0.55, 0.8, 0.95]))
def test_threshold_is_the_smallest_with_a_certified_accuracy(seed, alpha):
    rng = np.random.default_rng(seed)
    confidence = np.round(rng.uniform(0.3, 1, 80), 2)  # with ties
    correct = rng.uniform(size=80) < confidence
    good = [
        t
        for t in np.unique(confidence)
        if bound(correct[confidence >= t].sum(), (confidence >= t).sum()) >= alpha
    ]
    expected = min(good) if good else np.inf
    assert certified_threshold(confidence, correct, alpha) == expected


def test_threshold_needs_enough_rows():
    # All of n rows right: the bound is .05 ** (1 / n), and .95 needs n = 59.
    for n, found in ((58, np.inf), (59, 0.7)):
        assert certified_threshold(np.full(n, 0.7), np.ones(n, bool), 0.95) == found


def test_threshold_of_no_rows():
    nothing = np.zeros(0)
    assert certified_threshold(nothing, nothing.astype(bool), 0.9) == np.inf


def test_uncertified_alpha_warns_and_rejects_every_row():
    X, y = biased(n=30)
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=0.99)
    with pytest.warns(
        UserWarning, match=r"alpha=0.99 on these 30 .* rejects"
    ) as record:
        cal.fit(X, y)
    assert record[0].filename == __file__
    assert cal.threshold_ == np.inf
    assert (cal.predict_selective(X) == -1).all()


def test_another_alpha_needs_no_refit():
    X, y = biased(n=500)
    fitted = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=0.8).fit(X, y)
    other = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=0.7).fit(X, y)
    np.testing.assert_array_equal(
        fitted.predict_selective(X, alpha=0.7), other.predict_selective(X)
    )
    assert fitted.threshold_ > other.threshold_


def test_fit_rows_on_the_threshold_are_accepted():
    X, y = biased(n=500)
    cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=0.7).fit(X, y)
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
        (0.8, 0.2),
        pytest.param(0.7, 0.5, marks=pytest.mark.slow),
        pytest.param(0.9, 0.03, marks=pytest.mark.slow),
    ],
)
def test_accepted_accuracy_reaches_alpha(alpha, some):
    """On exchangeable data, with temperature, biases and threshold from 300 rows."""
    held, coverage = [], []
    for seed in range(200):
        X, y = biased(n=1300, seed=seed)
        cal = SemanticSoftmaxCalibrator([0, 1, 2], input="logits", alpha=alpha)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            cal.fit(X[:300], y[:300])
        labels, accepted = cal.predict_selective(X[300:], return_mask=True)
        coverage.append(accepted.mean())
        held.append(not accepted.any() or (labels == y[300:])[accepted].mean() >= alpha)
    assert np.mean(held) >= 0.85
    assert np.mean(coverage) > some
