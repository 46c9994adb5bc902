"""
Answer only what is safe
========================

A bank sorts customer queries by intent. Some queries are none of the intents it knows.
This example fits :class:`~sdm_sklearn.SDMClassifier` on cached embeddings of such
queries, and shows what it answers, what it rejects, and why.
"""

# %%
# Embeddings in, labels out
# -------------------------
# The bundled set holds sentence embeddings of 15 banking intents, and of queries that
# are out of scope.

import numpy as np
from sklearn.model_selection import train_test_split

from sdm_sklearn import SDMClassifier
from sdm_sklearn.datasets import load_intents
from sdm_sklearn.metrics import selective_classification_report

intents = load_intents()
rows = np.arange(len(intents.target))
fit, test = train_test_split(
    rows, test_size=1 / 3, stratify=intents.target, random_state=0
)
clf = SDMClassifier(alpha=0.9, random_state=0).fit(
    intents.data[fit], intents.target[fit]
)

# %%
# `predict_selective` puts the reject label where the accuracy `alpha` cannot be kept.

X, y = intents.data[test], intents.target[test]
labels, accepted = clf.predict_selective(X, return_mask=True)
print(f"answered: {accepted.mean():.2f} of the banking queries")
_, accepted_ood = clf.predict_selective(intents.ood_data, return_mask=True)
print(f"answered: {accepted_ood.mean():.3f} of the out-of-scope queries")

# %%
# Among the answers, accuracy is reported by true class and by predicted class.

print(selective_classification_report(y, clf.predict(X), accepted))

# %%
# Why a query is rejected
# -----------------------
# The signals of each row tell: the Similarity q, the Distance d, and the rescaled
# similarity q' that the region is built on.

signals = clf.signals(X)
for row in np.flatnonzero(~accepted)[:3]:
    nearest = intents.texts[fit][signals.nearest_index[row]]
    print(
        f"{intents.texts[test][row]}\n"
        f"   {signals.prediction[row]}: q = {signals.similarity[row]:.0f}, "
        f"d = {signals.distance[row]:.2f}, "
        f"q' = {signals.rescaled_similarity[row]:.1f}\n"
        f"   nearest exemplar: {nearest}"
    )

# %%
# Queries out of scope lie farther from every exemplar: most have d = 0.

import matplotlib.pyplot as plt

figure, ax = plt.subplots(layout="constrained")
bins = np.linspace(0, 1, 21)
share = {"weights": np.full(len(X), 1 / len(X))}
ax.hist(signals.distance, bins, **share, color="0.6", label="banking queries")
ood = clf.signals(intents.ood_data)
ax.hist(
    ood.distance,
    bins,
    weights=np.full(len(ood.distance), 1 / len(ood.distance)),
    histtype="step",
    color="black",
    linestyle="--",
    label="out-of-scope queries",
)
ax.set(xlabel="distance d", ylabel="share of queries", title="How near is the nearest?")
ax.legend()
plt.show()
