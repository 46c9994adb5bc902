"""
==========================
Reject what was never seen
==========================

A softmax has to choose. Asked for the weather, an intent classifier of a bank answers
"balance", and often with confidence. This example shows which signals of
:class:`~sdm_sklearn.SDMClassifier` tell such queries apart.
"""

# %%
# Queries of no known intent
# --------------------------
import matplotlib.pyplot as plt
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn import SDMClassifier
from sdm_sklearn.datasets import load_intents
from sdm_sklearn.metrics import ood_fpr_at_tpr, ood_roc_auc_score
from sdm_sklearn.plotting import SimilarityDistanceDisplay

intents = load_intents()
X_fit, X_test, y_fit, y_test = train_test_split(
    intents.data,
    intents.target,
    test_size=1 / 3,
    stratify=intents.target,
    random_state=0,
)
clf = SDMClassifier(alpha=0.9, random_state=0).fit(X_fit, y_fit)
softmax = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
softmax.fit(X_fit.astype(float), y_fit)

# %%
# Each signal as a detector
# -------------------------
# AUROC is the chance that a banking query scores higher than one out of scope; FPR is
# the share of out-of-scope queries that pass when 95 % of the banking queries do.
signals, ood = clf.signals(X_test), clf.signals(intents.ood_data)
scores = {
    "softmax, largest probability": [
        softmax.predict_proba(X.astype(float)).max(axis=1)
        for X in (X_test, intents.ood_data)
    ],
    "SDM probability": [signals.probability, ood.probability],
    "Similarity q": [signals.similarity, ood.similarity],
    "Distance d": [signals.distance, ood.distance],
    "score_samples": [clf.score_samples(X_test), clf.score_samples(intents.ood_data)],
}
print(f"{'score':30} AUROC  FPR at 95 % TPR")
for name, (inside, outside) in scores.items():
    auc = ood_roc_auc_score(inside, outside)
    print(f"{name:30} {auc:.3f}  {ood_fpr_at_tpr(inside, outside):15.3f}")

# %%
# As a ranking over all rows a good softmax does well here, too. q, d and the SDM
# probability are not made for that: d is 0 for most out-of-scope queries, but also for
# some banking queries, which then tie. `score_samples` goes on where d ends.
#
# What is answered
# ----------------
# A decision needs no ranking of what is rejected. At the same `alpha` the softmax
# answers far more queries out of scope than the region does.
likely = [proba >= 0.9 for proba in scores["softmax, largest probability"]]
print(f"softmax >= 0.9, banking queries:      {likely[0].mean():.3f}")
print(f"softmax >= 0.9, out-of-scope queries: {likely[1].mean():.3f}")
print(f"SDM region, banking queries:          {signals.accepted.mean():.3f}")
print(f"SDM region, out-of-scope queries:     {ood.accepted.mean():.3f}")
print(f"out of scope with q = 0:              {ood.is_ood.mean():.3f}")
print(f"out of scope with d = 0:              {(ood.distance == 0).mean():.3f}")

# %%
# The plane of q and d
# --------------------
# Answers need both: support by neighbours, and neighbours that are near.
SimilarityDistanceDisplay.from_estimator(clf, X_test, X_ood=intents.ood_data)
plt.show()

# %%
# The few that pass
# -----------------
# They are worth reading: an out-of-scope query that passes is close to a banking query
# in the embedding, right or wrong.
labels, accepted = clf.predict_selective(intents.ood_data, return_mask=True)
for text, label in zip(intents.ood_texts[accepted], labels[accepted], strict=True):
    print(f"{label:16} {text}")
