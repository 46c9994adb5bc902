"""Displays: the data of what is drawn, and what the legend says."""

import re
import subprocess
import sys

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Bunch

from sdm_sklearn import SDMClassifier, SelectiveThresholdCV
from sdm_sklearn import metrics as m
from sdm_sklearn.plotting import (
    AlphaDisplay,
    ExemplarCardDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
    SimilarityDistanceDisplay,
)
from sdm_sklearn.plotting._signals import explain


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def ordinary(fitted):
    _, X, y, _ = fitted
    return LogisticRegression().fit(X[:300, :2], y[:300]), X[300:, :2], y[300:]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def nothing_is_clipped(figure):
    """Everything that is drawn lies within the figure, to half a point."""
    figure.canvas.draw()
    drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    slack = 0.5 / 72
    assert drawn.x0 >= -slack
    assert drawn.y0 >= -slack
    assert drawn.x1 <= width + slack
    assert drawn.y1 <= height + slack


# ------------------------------------------------------------------ risk-coverage
def test_risk_coverage_of_a_selective_classifier(fitted):
    clf, X, y, _ = fitted
    X, y = X[300:], y[300:]
    display = RiskCoverageDisplay.from_estimator(
        clf, X, y, plot_chance_level=True, plot_oracle=True
    )
    labels, confidence = clf.predict(X), clf.predict_proba(X).max(axis=1)
    coverage, risk, _ = m.risk_coverage_curve(y, labels, confidence)
    assert_array_equal(display.lines_[0].get_xdata(), coverage)
    assert_array_equal(display.lines_[0].get_ydata(), risk)
    marked, accepted = clf.predict_selective(X, return_mask=True)
    assert display.accepted_point_.get_xdata()[0] == accepted.mean()
    assert display.accepted_point_.get_ydata()[0] == m.selective_risk(
        y, marked, accepted
    )
    assert_allclose(display.chance_level_.get_ydata(), risk[-1])
    # The oracle's risk is 0 until only errors are left, and the error rate at last.
    x, best = display.oracle_.get_data()
    assert (best[x <= 1 - risk[-1]] == 0).all()
    assert best[-1] == pytest.approx(risk[-1])
    texts = legend(display.ax_)
    assert f"AURC = {m.aurc(y, labels, confidence):.4f}" in texts[0]
    assert "accepted by SDMClassifier" in texts[1]
    assert "chance" in texts[2]
    assert "oracle" in texts[3]
    nothing_is_clipped(display.figure_)


def test_risk_coverage_alpha_moves_the_point(fitted):
    clf, X, y, _ = fitted
    points = []
    for alpha in (0.6, 0.9):
        display = RiskCoverageDisplay.from_estimator(clf, X[300:], y[300:], alpha=alpha)
        points.append(display.accepted_point[0])
        accepted = clf.predict_selective(X[300:], alpha=alpha, return_mask=True)[1]
        assert points[-1] == accepted.mean()
    assert points[0] != points[1]


def test_several_models_on_one_pair_of_axes(fitted, ordinary):
    model, X, y = ordinary
    _, ax = plt.subplots()
    first = RiskCoverageDisplay.from_estimator(model, X, y, ax=ax)
    second = RiskCoverageDisplay.from_estimator(model, X, y, ax=ax, name="other")
    assert first.accepted_point_ is None
    assert first.ax_ is second.ax_ is ax
    styles = [display.lines_[0].get_linestyle() for display in (first, second)]
    assert styles[0] != styles[1]
    assert [text.split(" (")[0] for text in legend(ax)] == [
        "LogisticRegression",
        "other",
    ]


def test_risk_coverage_with_weights_and_nothing_accepted():
    y, labels, confidence = ["a", "b", "b"], ["a", "b", "a"], [0.9, 0.8, 0.7]
    display = RiskCoverageDisplay.from_predictions(
        y, labels, confidence, accepted=[False] * 3, sample_weight=[2, 1, 1], color="r"
    )
    assert_array_equal(display.lines_[0].get_xdata(), [0.5, 0.75, 1])
    assert_array_equal(display.lines_[0].get_ydata(), [0, 0, 0.25])
    assert display.accepted_point_ is None
    assert display.lines_[0].get_color() == "r"
    again = display.plot(name="again")
    assert legend(again.ax_) == [f"again (AURC = {display.aurc[0]:.4f})"]


def test_risk_coverage_from_cv_results(ordinary):
    _, X, y = ordinary
    cv_results = cross_validate(
        LogisticRegression(), X, y, cv=3, return_estimator=True, return_indices=True
    )
    w = np.arange(1, len(X) + 1)
    display = RiskCoverageDisplay.from_cv_results(cv_results, X, y, sample_weight=w)
    assert len(display.lines_) == 3
    for line, estimator, test in zip(
        display.lines_,
        cv_results["estimator"],
        cv_results["indices"]["test"],
        strict=True,
    ):
        confidence = estimator.predict_proba(X[test]).max(axis=1)
        coverage, risk, _ = m.risk_coverage_curve(
            y[test], estimator.predict(X[test]), confidence, sample_weight=w[test]
        )
        assert_array_equal(line.get_xdata(), coverage)
        assert_array_equal(line.get_ydata(), risk)
    assert len(legend(display.ax_)) == 1
    assert "3 folds" in legend(display.ax_)[0]
    with pytest.raises(ValueError, match="return_estimator=True"):
        RiskCoverageDisplay.from_cv_results({"test_score": [1]}, X, y)


def test_alpha_is_refused_for_an_ordinary_classifier(ordinary):
    model, X, y = ordinary
    with pytest.raises(TypeError, match="has no predict_selective"):
        RiskCoverageDisplay.from_estimator(model, X, y, alpha=0.9)


# -------------------------------------------------------------------- reliability
@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_reliability_points_make_up_the_error(ordinary, strategy):
    model, X, y = ordinary
    display = ReliabilityDisplay.from_estimator(
        model, X, y, n_bins=5, strategy=strategy
    )
    hits, confidence = model.predict(X) == y, model.predict_proba(X).max(axis=1)
    error = m.expected_calibration_error(hits, confidence, n_bins=5, strategy=strategy)
    shares = np.array([bar.get_height() for bar in display.bars_])
    x, accuracy = display.line_.get_data()
    assert shares.sum() == pytest.approx(1)
    assert shares @ np.abs(x - accuracy) == pytest.approx(error)
    assert shares @ accuracy == pytest.approx(hits.mean())
    assert_allclose([b.get_x() + b.get_width() / 2 for b in display.bars_], x)
    assert f"ECE = {error:.3f}" in legend(display.ax_)[0]
    assert legend(display.ax_)[1] == "perfectly calibrated"
    nothing_is_clipped(display.figure_)


def test_reliability_of_two_models(ordinary):
    model, X, y = ordinary
    _, ax = plt.subplots(layout="constrained")
    first = ReliabilityDisplay.from_estimator(model, X, y, ax=ax)
    second = ReliabilityDisplay.from_estimator(model, X, y, ax=ax, name="b")
    assert first.counts_ax_ is second.counts_ax_
    assert second.diagonal_ is None
    assert len(legend(ax)) == 3
    nothing_is_clipped(ax.figure)
    bare = ReliabilityDisplay.from_predictions([1, 0], [0.9, 0.2], plot_counts=False)
    assert bare.bars_ is None
    assert bare.counts_ax_ is None
    with pytest.raises(ValueError, match="different kinds"):
        ReliabilityDisplay.from_estimator(model, X, np.arange(len(X)) % 3)


# -------------------------------------------------------------------------- alpha
def test_alpha_display_of_an_estimator(fitted):
    clf, X, y, _ = fitted
    X, y = X[300:], y[300:]
    alphas = [0.9, 0.6, 0.7]
    display = AlphaDisplay.from_estimator(make_pipe(clf), X, y, alphas=alphas)
    assert_array_equal(display.coverage_line_.get_xdata(), sorted(alphas))
    for i, alpha in enumerate(sorted(alphas)):
        labels, accepted = clf.predict_selective(X, alpha=alpha, return_mask=True)
        assert display.coverage_line_.get_ydata()[i] == accepted.mean()
        assert display.worst_line_.get_ydata()[i] == m.worst_conditional_accuracy_score(
            y, labels, accepted
        )
        assert display.accuracy_line_.get_ydata()[i] == m.selective_accuracy_score(
            y, labels, accepted
        )
    assert_array_equal(*display.target_line_.get_data())
    assert display.best_alpha_line_ is None
    nothing_is_clipped(display.figure_)


def test_alpha_display_counts_unknown_classes_as_errors(fitted):
    clf, X, y, _ = fitted
    y = np.where(np.arange(len(y)) % 2, y, "unknown")
    display = AlphaDisplay.from_estimator(clf, X[300:], y[300:], alphas=[0.7])
    assert display.table["worst_class_conditional_accuracy"] == 0
    with pytest.raises(ValueError, match="different kinds"):
        AlphaDisplay.from_estimator(clf, X[300:], np.zeros(150, dtype=int))
    with pytest.raises(ValueError, match="y has 5 rows"):
        AlphaDisplay.from_estimator(clf, X[300:], y[:5])


def test_alpha_display_of_a_table(fitted):
    _, X, y, _ = fitted
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.8, cv=3).fit(X, y)
    display = AlphaDisplay.from_cv_results(
        tool.cv_results_, best_alpha=tool.best_alpha_, target=0.8
    )
    assert display.best_alpha_line_.get_xdata()[0] == tool.best_alpha_
    assert display.target_line_.get_ydata()[0] == 0.8
    table = tool.cv_results_
    path = display.band_.get_paths()[0].vertices
    assert path[:, 1].min() == np.nanmin(table["worst_conditional_accuracy_lower"])
    assert f"recommended alpha: {tool.best_alpha_:g}" in legend(display.ax_)
    with pytest.raises(ValueError, match="Got the keys"):
        AlphaDisplay.from_cv_results({"mean_test_score": [1]})
    unattainable = AlphaDisplay.from_cv_results(table, best_alpha=np.nan)
    assert unattainable.best_alpha_line_ is None


# ---------------------------------------------------------------------- q-d plane
def make_pipe(clf):
    """A fitted Pipeline around a fitted classifier, with the identity before it."""
    scaler = StandardScaler(with_mean=False, with_std=False)
    return make_pipeline(scaler.fit(np.zeros((2, clf.n_features_in_))), clf)


@pytest.mark.parametrize("wrap", [lambda clf: clf, make_pipe])
def test_similarity_distance_points(fitted, wrap):
    clf, X, _, far = fitted
    display = SimilarityDistanceDisplay.from_estimator(wrap(clf), X[300:], X_ood=far)
    signals = clf.signals(X[300:])
    drawn = display.points_["accepted"].get_offsets()
    assert_array_equal(drawn[:, 0], signals.similarity[signals.accepted])
    assert_array_equal(drawn[:, 1], signals.distance[signals.accepted])
    rejected = len(display.points_["rejected"].get_offsets())
    assert rejected == (~signals.accepted).sum()
    assert len(display.points_["ood rejected"].get_offsets()) == len(far)
    assert (drawn[:, 0] >= display.region_.get_x()).all()
    assert display.region_.get_x() == clf.q_min_
    assert f"OOD, rejected: {len(far)} of {len(far)}" in legend(display.ax_)
    nothing_is_clipped(display.figure_)


def test_similarity_distance_without_ood_or_region(fitted):
    _, X, y, _ = fitted
    clf = SDMClassifier(alpha=0.999, n_filters=4, max_epochs=2, random_state=0)
    with pytest.warns(UserWarning, match="No region"):
        clf.fit(X, y)
    display = SimilarityDistanceDisplay.from_estimator(clf, X)
    assert display.region_ is None
    assert set(display.points_) == {"accepted", "rejected"}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_signals_as_frames_are_drawn_alike(fitted, library):
    clf, X, _, _ = fitted
    want = SimilarityDistanceDisplay.from_estimator(clf, X[300:]).similarity
    try:
        clf.set_output(transform=library)
        got = SimilarityDistanceDisplay.from_estimator(clf, X[300:]).similarity
    finally:
        clf.set_output(transform="default")
    assert_array_equal(got, want)


def test_displays_of_signals_need_an_sdm(fitted):
    _, X, y, _ = fitted
    tool = SelectiveThresholdCV(LogisticRegression(), alpha=0.8, cv=3).fit(X, y)
    with pytest.raises(TypeError, match="has no signals"):
        SimilarityDistanceDisplay.from_estimator(tool, X)
    with pytest.raises(TypeError, match="has no signals"):
        ExemplarCardDisplay.from_estimator(tool, X[0], X, y)


def test_displays_behind_a_tool_show_its_decisions(fitted):
    clf, X, y, _ = fitted
    tool = SelectiveThresholdCV(
        make_pipeline(clone(clf)), alpha=0.8, alphas=[0.6, 0.7, 0.8], cv=3
    ).fit(X, y)
    inner = tool.estimator_[-1]
    assert inner.alpha == tool.best_alpha_
    for alpha in (None, 0.75):
        accepted = tool.predict_selective(X, alpha=alpha, return_mask=True)[1]
        plane = SimilarityDistanceDisplay.from_estimator(tool, X, alpha=alpha)
        assert_array_equal(plane.accepted, accepted)
        chosen = tool.recommend_alpha(alpha)
        assert plane.q_min == inner._find_regions(chosen)[1][0].q_min.min()
        for i in (np.flatnonzero(accepted)[0], np.flatnonzero(~accepted)[0]):
            card = ExemplarCardDisplay.from_estimator(tool, X[i], X, y, alpha=alpha)
            assert card.row.accepted == accepted[i]
    tool.best_alpha_ = np.nan
    with pytest.raises(ValueError, match="knows no alpha that keeps this accuracy"):
        SimilarityDistanceDisplay.from_estimator(tool, X)


def test_card_at_another_alpha(fitted):
    clf, X, y, _ = fitted
    for alpha in (0.6, 0.75):
        signals = clf.signals(X[:20], alpha=alpha)
        for i in range(3):
            card = ExemplarCardDisplay.from_estimator(clf, X[i], X, y, alpha=alpha)
            assert card.row.accepted == signals.accepted[i]
            assert card.row.threshold in clf._find_regions(alpha)[1][0].thresholds


# ------------------------------------------------------------------- exemplar card
@pytest.mark.parametrize("wrap", [lambda clf: clf, make_pipe])
def test_exemplar_card(fitted, wrap):
    clf, X, y, _ = fitted
    texts = np.array([f"text {i} " * 20 for i in range(300)])
    display = ExemplarCardDisplay.from_estimator(
        wrap(clf), X[300], X[:300], y[:300], texts=texts, title="t" * 200
    )
    distance, index = clf.kneighbors(X[300:301], n_neighbors=8)
    assert_array_equal([bar.get_width() for bar in display.bars_], distance[0])
    assert_array_equal(display.exemplars.index, index[0])
    assert_array_equal(display.exemplars.label, y[index[0]])
    shown = [text.get_text() for text in display.axes_[0].texts]
    assert all(f"text {i}" in text for i, text in zip(index[0], shown, strict=True))
    rows = clf.calibration_indices_
    rows = rows[clf.predict(X[rows]) == display.row.prediction]
    signals = clf.signals(X[rows])
    right = clf.predict(X[rows]) == y[rows]
    for artist, mask in ((display.right_, right), (display.wrong_, ~right)):
        assert_array_equal(
            np.asarray(artist.get_offsets()),
            np.c_[signals.rescaled_similarity[mask], signals.probability[mask]],
        )
    assert display.row.accepted == clf.signals(X[300:301]).accepted[0]
    verdict = "accepted" if display.row.accepted else "rejected"
    assert verdict in display.figure_.get_suptitle()
    nothing_is_clipped(display.figure_)


def test_exemplar_card_takes_any_text(fitted):
    clf, X, y, _ = fitted
    texts = np.array(["pay $5, or $\\frac{1$\n" * 9] * 300)
    display = ExemplarCardDisplay.from_estimator(
        clf, X[300], X[:300], y[:300], texts=texts, title="$x_{ and $"
    )
    display.figure_.canvas.draw()


def test_exemplar_card_of_an_ood_row(fitted):
    clf, X, y, far = fitted
    figure = plt.figure(figsize=(11, 5))
    display = ExemplarCardDisplay.from_estimator(
        clf, far[:1], X[:300], y[:300], n_neighbors=3, figure=figure
    )
    assert display.figure_ is figure
    assert len(display.bars_) == 3
    assert re.search("rejected: [qd] = 0", figure.get_suptitle())


def test_exemplar_card_refusals(fitted):
    clf, X, y, _ = fitted
    with pytest.raises(ValueError, match=r"x must be one row.*\(2, 12\)"):
        ExemplarCardDisplay.from_estimator(clf, X[:2], X[:300], y[:300])
    with pytest.raises(ValueError, match="y_train has 100 rows"):
        ExemplarCardDisplay.from_estimator(clf, X[0], X[:100], y[:100])
    with pytest.raises(ValueError, match="X_train has 299 rows where 300"):
        ExemplarCardDisplay.from_estimator(clf, X[0], X[:299], y[:300])
    with pytest.raises(ValueError, match="texts has 2 rows"):
        ExemplarCardDisplay.from_estimator(
            clf, X[0], X[:300], y[:300], texts=["a", "b"]
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accepted": True}, "q' ≥ 7.00 and probability ≥ 0.900"),
        ({"q_min": np.inf, "threshold": np.inf}, "no region reaches alpha"),
        ({"similarity": 0}, "q = 0"),
        ({"distance": 0.0}, "d = 0"),
        ({"rescaled_similarity": 6.9999}, "q' = 6.9999 < 7.0000"),
        (
            {"rescaled_similarity": 5.0, "probability": 0.89999},
            "q' = 5.00 < 7.00 and probability = 0.89999 < 0.90000",
        ),
        ({}, "disagree"),
    ],
)
def test_reasons(changes, reason):
    row = Bunch(
        accepted=False,
        similarity=9,
        distance=0.5,
        rescaled_similarity=8.0,
        probability=0.99,
        q_min=7.0,
        threshold=0.9,
    )
    assert reason in explain(Bunch(**{**row, **changes}))


def test_import_leaves_matplotlib_alone():
    code = (
        "import sys, sdm_sklearn.plotting, sdm_sklearn.metrics; "
        "from sdm_sklearn import SelectiveThresholdCV; "
        "assert not {'matplotlib', 'torch', 'pynndescent'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reliability_takes_nullable_hits():
    hits = pd.array([True, False, True], dtype="boolean")
    display = ReliabilityDisplay.from_predictions(hits, [0.9, 0.9, 0.5])
    assert_array_equal(display.line_.get_ydata(), [1, 0.5])
