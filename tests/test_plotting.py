"""Displays: the data of what is drawn, and what the legend says."""

import re
import subprocess
import sys
import warnings
from copy import deepcopy
from itertools import pairwise

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
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
from sdm_sklearn.plotting._style import plain


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
    # The model is named once; what belongs to it follows in its colour.
    assert [text.split(":")[0] for text in texts[1:]] == [
        "accepted",
        "chance",
        "oracle",
    ]
    for artist in (display.accepted_point_, display.chance_level_, display.oracle_):
        assert artist.get_color() == display.lines_[0].get_color()
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


def test_a_worse_model_on_the_same_axes_is_not_cut_off():
    _, ax = plt.subplots()
    confidence = np.linspace(1, 0.5, 8)
    for n_wrong in (3, 8, 1):
        labels = [1] * (8 - n_wrong) + [0] * n_wrong
        display = RiskCoverageDisplay.from_predictions(
            [1] * 8, labels, confidence, ax=ax, name="m"
        )
        ax.figure.canvas.draw()
        assert ax.get_ylim()[0] == 0
        for line in ax.get_lines():
            assert line.get_ydata().max() <= ax.get_ylim()[1]
        assert display.lines_[0].get_ydata()[-1] == n_wrong / 8


def test_names_are_shown_as_they_are(fitted):
    clf, X, y, _ = fitted
    for display in (RiskCoverageDisplay, ReliabilityDisplay, AlphaDisplay):
        names = ["_private", "costs $5 or $6", "x" * 100, "two\nlines"]
        _, ax = plt.subplots()
        for name in names:
            display.from_estimator(clf, X[300:], y[300:], name=name, ax=ax)
        text = "\n".join(legend(ax))
        for shown in (" _private", r"costs \$5 or \$6", "x" * 39 + "…", "two lines"):
            assert shown in text
        assert "x" * 40 not in text
        ax.figure.canvas.draw()


@pytest.mark.parametrize("display", [RiskCoverageDisplay, ReliabilityDisplay])
def test_aliases_of_line_styles(ordinary, display):
    model, X, y = ordinary
    drawn = display.from_estimator(
        model, X, y, c="r", lw=3, ls=":", mec="k", label="mine"
    )
    line = drawn.line_ if display is ReliabilityDisplay else drawn.lines_[0]
    assert line.get_color() == "r"
    assert line.get_linewidth() == 3
    assert line.get_linestyle() == ":"
    assert line.get_markeredgecolor() == "k"
    assert legend(drawn.ax_)[0] == "mine"


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
    more = display.plot(plot_oracle=True, plot_chance_level=True)
    grid, best = more.oracle_.get_data()
    rates = [risk[-1] for risk in display.risk]
    oracles = [np.maximum(1 - (1 - rate) / grid, 0) for rate in rates]
    assert_allclose(best, np.mean(oracles, axis=0), atol=1e-12)
    assert_allclose(more.chance_level_.get_ydata(), np.mean(rates))
    assert all("mean of 3 folds" in text for text in legend(more.ax_)[1:])
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


def test_each_axes_has_its_own_strip_of_counts(ordinary):
    model, X, y = ordinary
    figure, axes = plt.subplots(
        1, 2, sharex=True, figsize=(10, 4), layout="constrained"
    )
    displays = [
        ReliabilityDisplay.from_estimator(model, X[rows], y[rows], ax=ax)
        for rows, ax in zip((slice(None), slice(5)), axes, strict=True)
    ]
    for display in displays:
        assert len(display.counts_ax_.patches) == len(display.bars_)
        display.ax_.set_title("title")
    nothing_is_clipped(figure)
    for display in displays:
        boxes = [
            artist.get_window_extent()
            for artist in (display.ax_, display.counts_ax_, display.ax_.title)
        ]
        for below, above in pairwise(boxes):
            assert below.y1 < above.y0
        assert boxes[0].x0 == pytest.approx(boxes[1].x0)
    # Even the second model's larger share fits.
    display = ReliabilityDisplay.from_predictions([1] * 9, [0.9] * 9, ax=axes[1])
    assert 1 < display.counts_ax_.get_ylim()[1] < 1.1


def test_small_shares_are_seen():
    confidence = np.linspace(0, 1, 200)
    display = ReliabilityDisplay.from_predictions(
        confidence > 0.5, confidence, n_bins=100
    )
    display.figure_.canvas.draw()
    strip = display.counts_ax_
    assert strip.get_ylim()[1] < 0.012
    ticks = [text.get_text() for text in strip.get_yticklabels()]
    assert len(set(ticks)) == len(ticks)


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
    with pytest.raises(ValueError, match="alphas is empty: pass at least one"):
        AlphaDisplay.from_estimator(clf, X[300:], y[300:], alphas=[])
    for level in (0, 1.5, np.nan):
        with pytest.raises(ValueError, match="confidence_level must be strictly"):
            AlphaDisplay.from_estimator(clf, X[300:], y[300:], confidence_level=level)


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
    for key in ("alpha", "selective_accuracy", "worst_conditional_accuracy_upper"):
        rest = {name: table[name] for name in table if name != key}
        with pytest.raises(ValueError, match=rf"lacks the keys \['{key}'\]"):
            AlphaDisplay.from_cv_results(rest)
    unattainable = AlphaDisplay.from_cv_results(table, best_alpha=np.nan)
    assert unattainable.best_alpha_line_ is None


@pytest.mark.parametrize("condition", ["both", "class", "prediction", "marginal"])
def test_alpha_display_draws_the_accuracy_that_decides(fitted, condition):
    _, X, y, _ = fitted
    tool = SelectiveThresholdCV(
        LogisticRegression(), alpha=0.8, cv=3, condition=condition
    ).fit(X, y)
    display = AlphaDisplay.from_cv_results(
        tool.cv_results_, best_alpha=tool.best_alpha_, target=0.8, condition=condition
    )
    x, accuracy = display.worst_line_.get_data()
    assert accuracy[x == tool.best_alpha_] >= 0.8
    column = tool._deciding_column()
    assert_array_equal(accuracy, tool.cv_results_[column])
    path = display.band_.get_paths()[0].vertices
    assert path[:, 1].min() == np.nanmin(tool.cv_results_[column + "_lower"])
    texts = legend(display.ax_)
    assert len(set(texts)) == len(texts)
    assert (display.accuracy_line_ is None) == (condition == "marginal")
    assert ("class" in display.worst_line_.get_label()) == (
        condition in ("both", "class")
    )
    again = AlphaDisplay.from_estimator(tool, X, y, condition=condition)
    assert_array_equal(again.worst_line_.get_ydata(), again.table[column])


def test_alpha_display_refuses_an_unknown_condition(fitted):
    clf, X, y, _ = fitted
    with pytest.raises(ValueError, match=r"condition must be one of .*Got 'worst'"):
        AlphaDisplay.from_cv_results({}, condition="worst")
    with pytest.raises(ValueError, match="condition must be one of"):
        AlphaDisplay.from_estimator(clf, X, y, condition=None)


def test_alpha_display_of_two_models(fitted):
    clf, X, y, _ = fitted
    _, ax = plt.subplots()
    displays = [
        AlphaDisplay.from_estimator(clf, X[300:], y[300:], name=name, ax=ax)
        for name in "ab"
    ]
    texts = legend(ax)
    assert texts.count("accuracy = alpha") == 1
    assert sum(text.startswith("a: ") for text in texts) == 4
    assert sum(text.startswith("b: ") for text in texts) == 4
    markers = {display.worst_line_.get_marker() for display in displays}
    assert len(markers) == 2


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


def test_similarity_distance_of_two_models(fitted):
    clf, X, _, _ = fitted
    _, ax = plt.subplots()
    first = SimilarityDistanceDisplay.from_estimator(clf, X[300:], ax=ax, label="_a")
    right = ax.get_xlim()[1]
    assert right == first.similarity.max() * 1.3
    near = X[300:][first.similarity < 20]
    SimilarityDistanceDisplay.from_estimator(clf, near, ax=ax, label="b")
    assert ax.get_xlim()[1] == right
    assert sum(text.startswith(" _a: ") for text in legend(ax)) == 3
    assert sum(text.startswith("b: ") for text in legend(ax)) == 3


def test_aliases_of_point_styles(fitted):
    clf, X, _, _ = fitted
    display = SimilarityDistanceDisplay.from_estimator(clf, X, c="r", lw=3)
    accepted, rejected = display.points_["accepted"], display.points_["rejected"]
    red = [[1, 0, 0, 0.7]]
    assert_array_equal(accepted.get_facecolor(), red)
    assert_array_equal(rejected.get_edgecolor(), red)
    assert len(rejected.get_facecolor()) == 0
    assert_array_equal(accepted.get_linewidth(), 3)
    display = SimilarityDistanceDisplay.from_estimator(clf, X, ec="r", fc="r")
    for points in display.points_.values():
        assert_array_equal(points.get_edgecolor(), red)
        assert_array_equal(points.get_facecolor(), red)


def test_similarity_distance_shows_a_region_beyond_all_rows():
    display = SimilarityDistanceDisplay(
        similarity=np.array([0, 3]),
        distance=np.array([0, 1]),
        accepted=np.array([False, False]),
        out_of_distribution=np.array([False, False]),
        q_min=50.0,
    ).plot()
    assert display.ax_.get_xlim()[1] == 65


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


def test_exemplar_card_of_a_model_with_few_exemplars(fitted):
    _, X, y, _ = fitted
    clf = SDMClassifier(alpha=0.7, support_size=4, max_epochs=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf.fit(X[:300], y[:300])
    card = ExemplarCardDisplay.from_estimator(clf, X[300], X[:300], y[:300])
    assert sorted(card.exemplars.index) == sorted(clf.support_indices_)


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


def test_exemplar_card_cuts_text_without_blanks(fitted):
    clf, X, y, _ = fitted
    address = "https://example.org/" + "a" * 90
    display = ExemplarCardDisplay.from_estimator(
        clf, X[300], X[:300], y[:300], texts=[address] * 300, title="t" * 200
    )
    for text, label in zip(
        display.axes_[0].texts, display.exemplars.label, strict=True
    ):
        assert text.get_text() == f"{label}: {address}"[:65] + "…"
    assert display.figure_.get_suptitle().startswith("t" * 109 + "…\n")


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("", 5, ""),
        ("12345", 5, "12345"),
        ("123456", 5, "1234…"),
        ("123 56", 5, "123…"),
        ("  1\n 3 ", 5, "1 3"),
        ("语言模型", 8, "语言模型"),
        ("语言模型", 7, "语言模…"),
        ("语言模型", 6, "语言…"),
        ("_1", 5, " _1"),
        ("$1", 5, r"\$1"),
        (None, 5, "None"),
    ],
)
def test_plain_text(text, width, shown):
    assert plain(text, width) == shown


def test_exemplar_card_refuses_what_fit_was_not_given(fitted):
    clf, X, y, far = fitted
    codes = np.searchsorted(clf.classes_, y[:300])
    with pytest.raises(ValueError, match="labels of the kind of the classes"):
        ExemplarCardDisplay.from_estimator(clf, X[300], X[:300], codes)
    with pytest.raises(ValueError, match=r"y_train holds '\w+' at \d+ where fit was"):
        ExemplarCardDisplay.from_estimator(clf, X[300], X[:300], y[299::-1])
    for row in (X[300], far[0]):
        for wrong in (X[299::-1], X[:300] + 0.5):
            with pytest.raises(ValueError, match="X_train does not hold the exemplars"):
                ExemplarCardDisplay.from_estimator(clf, row, wrong, y[:300])


def test_exemplar_card_bears_the_rounding_of_a_pipeline(fitted):
    clf, X, y, _ = fitted
    X = (X + 100).astype(np.float32)
    pipeline = make_pipeline(PCA(8), clone(clf)).fit(X[:300], y[:300])
    for row in (X[0], X[300], X[300] * 1000):
        ExemplarCardDisplay.from_estimator(pipeline, row, X[:300], y[:300])


def test_exemplar_card_with_rows_added_to_the_support(fitted):
    clf, X, y, _ = fitted
    clf = deepcopy(clf)
    with pytest.warns(UserWarning, match="No region"):
        clf.add_to_support(X[300:310], ["unknown"] * 10)
    labels = np.append(y[:300], ["unknown"] * 10)
    display = ExemplarCardDisplay.from_estimator(
        clf, X[300], X[:310], labels, n_neighbors=1
    )
    assert display.exemplars.label == ["unknown"]


def test_exemplar_card_of_a_row_of_a_frame(fitted):
    clf, X, y, _ = fitted
    frame = pd.DataFrame(X, columns=[f"v{i}" for i in range(X.shape[1])])
    columns = make_column_transformer(("passthrough", [*frame.columns[::-1]]))
    pipeline = make_pipeline(columns, clone(clf)).fit(frame[:300], y[:300])
    cards = [
        ExemplarCardDisplay.from_estimator(pipeline, row, frame[:300], y[:300])
        for row in (frame.iloc[300], frame.iloc[[300]])
    ]
    assert_array_equal(cards[0].exemplars.index, cards[1].exemplars.index)
    assert cards[0].row == cards[1].row
    # A row of a frame for a classifier that knows no names.
    ExemplarCardDisplay.from_estimator(clf, frame.iloc[300], X[:300], y[:300])


@pytest.mark.parametrize("sub", [False, True])
def test_exemplar_card_lays_out_a_given_figure(fitted, sub):
    clf, X, y, _ = fitted
    figure = plt.figure(figsize=(11, 4.8))
    card = ExemplarCardDisplay.from_estimator(
        clf,
        X[300],
        X[:300],
        y[:300],
        figure=figure.subfigures() if sub else figure,
        title="title",
    )
    nothing_is_clipped(figure)
    left, right = (ax.get_tightbbox() for ax in card.axes_)
    assert left.x1 < right.x0
    assert left.y1 < card.figure_._suptitle.get_window_extent().y0


def test_nothing_is_black_on_black(fitted):
    clf, X, y, far = fitted
    with plt.style.context("dark_background"):
        risk = RiskCoverageDisplay.from_estimator(clf, X, y)
        alpha = AlphaDisplay.from_estimator(clf, X, y)
        marked = AlphaDisplay(table=alpha.table, best_alpha=0.9).plot()
        plane = SimilarityDistanceDisplay.from_estimator(clf, X, X_ood=far)
        card = ExemplarCardDisplay.from_estimator(clf, X[300], X[:300], y[:300])
        reliability = ReliabilityDisplay.from_estimator(clf, X, y)
    colors = [
        risk.lines_[0].get_color(),
        risk.accepted_point_.get_markeredgecolor(),
        alpha.worst_line_.get_color(),
        marked.best_alpha_line_.get_color(),
        plane.points_["accepted"].get_facecolor()[0, :3],
        card.row_.get_facecolor()[0, :3],
        card.right_.get_edgecolor()[0, :3],
        reliability.line_.get_color(),
    ]
    assert min(np.mean(mpl.colors.to_rgb(color)) for color in colors) > 0.5
    for text in card.axes_[0].texts:
        assert np.mean(text.get_bbox_patch().get_facecolor()[:3]) < 0.5


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
