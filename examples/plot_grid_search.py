"""
======================================
Search in a Pipeline for what you want
======================================

Accuracy alone is the wrong score for a classifier that may reject: it is best when
nothing is answered but the easiest row. This example searches over `alpha` and the
number of filters, inside a Pipeline, for the most coverage that keeps an accuracy.
"""

# %%
# Scorers that know of rejection
# ------------------------------
# :func:`~sdm_sklearn.metrics.coverage_at_accuracy_scorer` is the coverage if the worst
# accuracy of any intent and any answer reaches the target, else 0. The others stand
# beside it for the record.
import warnings

import numpy as np
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn import NoRegionWarning, SDMClassifier, predict_selective
from sdm_sklearn.datasets import load_intents
from sdm_sklearn.metrics import (
    coverage_at_accuracy_scorer,
    coverage_scorer,
    worst_conditional_accuracy_score,
    worst_conditional_accuracy_scorer,
)

X, y = load_intents(return_X_y=True)
# A scaler divides in the dtype of X, and in float16 by zero where a feature is nearly
# constant. SDMClassifier alone takes float16 as it is.
X = X.astype(np.float32)
X_fit, X_test, y_fit, y_test = train_test_split(
    X, y, test_size=1 / 3, stratify=y, random_state=0
)
sdm = SDMClassifier(n_restarts=1, random_state=0)
search = GridSearchCV(
    Pipeline([("scale", StandardScaler()), ("sdm", sdm)]),
    {"sdm__alpha": [0.7, 0.8], "sdm__n_filters": [32, 64]},
    scoring={
        "coverage": coverage_scorer(),
        "worst": worst_conditional_accuracy_scorer(replace_undefined_by=0.0),
        "coverage_at_accuracy": coverage_at_accuracy_scorer(target=0.9),
    },
    refit="coverage_at_accuracy",
    cv=3,
    n_jobs=2,
)
with warnings.catch_warnings():
    # A fold without a region scores 0, which is all the search needs to know.
    warnings.simplefilter("ignore", NoRegionWarning)
    search.fit(X_fit, y_fit)

# %%
# What the search saw
# -------------------
# Coverage is not monotone in `alpha`: a lower value sets the threshold of every class
# at a higher quantile.
results = search.cv_results_
print("alpha  filters  coverage  worst accuracy  coverage at 0.9")
for i, parameters in enumerate(results["params"]):
    print(
        f"{parameters['sdm__alpha']:5g}  {parameters['sdm__n_filters']:7d}"
        f"  {results['mean_test_coverage'][i]:8.3f}"
        f"  {results['mean_test_worst'][i]:14.3f}"
        f"  {results['mean_test_coverage_at_accuracy'][i]:15.3f}"
    )
print("chosen:", search.best_params_)

# %%
# Selective prediction through the search
# ---------------------------------------
# A search forwards scikit-learn's own methods only;
# :func:`~sdm_sklearn.predict_selective` finds the classifier inside.
labels, accepted = predict_selective(search, X_test, return_mask=True)
worst = worst_conditional_accuracy_score(y_test, labels, accepted)
print(f"held out: coverage {accepted.mean():.3f}, worst accuracy {worst:.3f}")

# %%
# The same scores, drawn: every candidate is a point, the chosen one is filled.
import matplotlib.pyplot as plt

figure, ax = plt.subplots(layout="constrained")
chosen = np.arange(len(results["params"])) == search.best_index_
for mask, color, label in (
    (~chosen, "white", "candidates"),
    (chosen, "black", "chosen"),
):
    ax.scatter(
        results["mean_test_coverage"][mask],
        results["mean_test_worst"][mask],
        color=color,
        edgecolor="black",
        label=label,
        zorder=3,
    )
ax.axhline(0.9, color="0.5", linestyle="--", label="target")
ax.set(xlabel="coverage (mean of 3 folds)", ylabel="worst conditional accuracy")
ax.legend()
plt.show()
