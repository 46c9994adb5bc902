"""
===============================
Choose alpha, see what it costs
===============================

A selective classifier answers only where it can keep a promise: at least `alpha` of the
accepted answers right, in every class and for every answer. This example chooses alpha
for two classifiers by cross-validation, compares them, and explains one rejection.

The data are 15 intents of bank customers, as cached embeddings of a language model.
"""

# %%
# The data and a question
# -----------------------
# Two thirds of the queries are ours to fit on. Nine of ten answers should be right: not
# just on average, but for every intent.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from sdm_sklearn import SDMClassifier, SelectiveThresholdCV
from sdm_sklearn.datasets import load_intents
from sdm_sklearn.metrics import selective_classification_report
from sdm_sklearn.plotting import (
    AlphaDisplay,
    ExemplarCardDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
    SimilarityDistanceDisplay,
)

intents = load_intents()
fit, test = train_test_split(
    np.arange(len(intents.target)),
    test_size=1 / 3,
    stratify=intents.target,
    random_state=0,
)
X_fit, y_fit = intents.data[fit], intents.target[fit]
X_test, y_test = intents.data[test], intents.target[test]

# %%
# Thresholds by cross-validation, for any classifier
# --------------------------------------------------
# A logistic regression has no reject option of its own.
# :class:`~sdm_sklearn.SelectiveThresholdCV` cross-fits it once, puts a threshold on the
# probability of each class, and judges every alpha of a grid on rows that had no say in
# its thresholds. The recommended alpha accepts the most rows and still keeps the
# accuracy asked for.
baseline = SelectiveThresholdCV(LogisticRegression(), alpha=0.9).fit(X_fit, y_fit)
print(f"recommended alpha: {baseline.best_alpha_:g}")

# %%
# The dark line is the worst of 30 accuracies, one per intent and one per answer. Its
# band is wide, as there are only a hundred rows of each intent.
# ``criterion="lower_bound"`` would demand that the lower end of the band keeps the
# accuracy, and need more rows for it.
AlphaDisplay.from_cv_results(
    baseline.cv_results_, best_alpha=baseline.best_alpha_, target=0.9
)
plt.show()

# %%
# A classifier that knows its neighbours
# --------------------------------------
# :class:`~sdm_sklearn.SDMClassifier` accepts by its own rule. Its alpha may be changed
# when predicting, without a refit, so that one fit is enough to see all of them on rows
# held out. Beyond the largest alpha that its calibration half can attain,
# `alpha_found_`, nothing is accepted.
sdm = SDMClassifier(alpha=0.85, random_state=0).fit(X_fit, y_fit)
print(f"largest attainable alpha: {sdm.alpha_found_:g}")
AlphaDisplay.from_estimator(sdm, X_test, y_test)
plt.show()

# %%
# The table to judge by
# ---------------------
# Accuracy never stands without its share of all rows.
labels, accepted = sdm.predict_selective(X_test, return_mask=True)
print(selective_classification_report(y_test, labels, accepted))

# %%
# Both on one pair of axes
# ------------------------
# The curve shows every threshold on the probability, the star what a rule accepts. On
# queries like those it was fitted on, the logistic regression ranks at least as well.
# The curve of SDM starts where the rows with probability 1 end, which tie, and is
# straight where d is 0 and all rows tie again.
_, ax = plt.subplots(layout="constrained")
RiskCoverageDisplay.from_estimator(sdm, X_test, y_test, name="SDM", ax=ax)
RiskCoverageDisplay.from_estimator(
    baseline,
    X_test,
    y_test,
    name="logistic regression",
    ax=ax,
    plot_chance_level=True,
    plot_oracle=True,
)
plt.show()

# %%
# Their probabilities mean different things, which is why one fixed threshold cannot
# serve both.
_, ax = plt.subplots(layout="constrained")
ReliabilityDisplay.from_estimator(sdm, X_test, y_test, name="SDM", ax=ax)
ReliabilityDisplay.from_estimator(
    baseline, X_test, y_test, name="logistic regression", ax=ax
)
plt.show()

# %%
# What nobody asked for in training
# ---------------------------------
# The difference shows on queries that belong to none of the intents. No accuracy on
# such rows can be promised, they should be rejected.
for name, model in (("logistic regression", baseline), ("SDM", sdm)):
    _, ood_accepted = model.predict_selective(intents.ood_data, return_mask=True)
    _, in_accepted = model.predict_selective(X_test, return_mask=True)
    print(
        f"{name}: accepts {in_accepted.mean():.1%} of the queries in scope and "
        f"{ood_accepted.mean():.1%} of those out of scope"
    )
SimilarityDistanceDisplay.from_estimator(sdm, X_test, X_ood=intents.ood_data[:300])
plt.show()

# %%
# Why was this one rejected?
# --------------------------
# The card of one row names the reason, shows the training queries nearest to it, and
# how calibration queries with the same answer turned out.
signals = sdm.signals(X_test)
row = np.flatnonzero(~accepted & (signals.similarity > 0))[0]
ExemplarCardDisplay.from_estimator(
    sdm,
    X_test[row],
    X_fit,
    y_fit,
    texts=intents.texts[fit],
    title=f"“{intents.texts[test][row]}” (true intent: {y_test[row]})",
)
plt.show()
