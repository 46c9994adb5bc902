"""
=====================================
Find label errors among the exemplars
=====================================

Every answer of :class:`~sdm_sklearn.SDMClassifier` points at training rows. That helps
the other way round, too: a row whose confident, accepted prediction disagrees with its
label is more often a wrong label than a wrong prediction. Here errors are planted in
the bundled data, and found.
"""

# %%
# Plant errors
# ------------
# Two of a hundred labels are replaced by another intent, at random.
import matplotlib.pyplot as plt
import numpy as np

from sdm_sklearn import SDMClassifier
from sdm_sklearn.datasets import load_intents
from sdm_sklearn.plotting import ExemplarCardDisplay

intents = load_intents()
X, y = intents.data, intents.target.copy()
random = np.random.RandomState(0)
planted = random.choice(len(y), len(y) // 50, replace=False)
shift = random.randint(1, len(intents.target_names), size=len(planted))
codes = np.searchsorted(intents.target_names, y)
y[planted] = intents.target_names[(codes[planted] + shift) % len(intents.target_names)]
wrong = y != intents.target

# %%
# Judge each row by a model that did not train on it
# --------------------------------------------------
# With two halves, each row is held out once: `cv` takes the pairs of rows.
half = random.permutation(len(y)) % 2
suspicion = np.zeros(len(y))
for held_out in (0, 1):
    rows = np.flatnonzero(half != held_out)
    clf = SDMClassifier(alpha=0.7, n_restarts=1, random_state=0).fit(X[rows], y[rows])
    test = np.flatnonzero(half == held_out)
    signals = clf.signals(X[test])
    disagree = signals.prediction != y[test]
    # The more support an opposing prediction has, the more suspicious is the label.
    suspicion[test] = np.where(disagree, 1 + signals.rescaled_similarity, 0)

# %%
# The most suspicious rows
# ------------------------
order = np.argsort(-suspicion, kind="stable")
found = np.cumsum(wrong[order])
n_planted = wrong.sum()
top = found[n_planted - 1]
print(f"{n_planted} planted; {top} among the {n_planted} most suspicious")
for row in order[:5]:
    print(f"{intents.texts[row]}: labelled {y[row]}, was {intents.target[row]}")

# %%
# How many are found by looking at how many:
figure, ax = plt.subplots(layout="constrained")
looked_at = np.arange(1, 151)
ax.plot(looked_at, found[:150], color="black", label="by support against the label")
ax.plot(
    looked_at,
    looked_at * wrong.mean(),
    color="0.5",
    linestyle="--",
    label="at random",
)
ax.axhline(n_planted, color="0.7", linestyle=":", label="all that were planted")
ax.set(xlabel="rows looked at", ylabel="planted errors found")
ax.legend(loc="center right")
plt.show()

# %%
# The exemplars behind one of them
# --------------------------------
# The card shows the signals of the row, its nearest exemplars with their labels, and
# the calibration rows around it.
row = next(row for row in order if half[row] == 1 and wrong[row])
ExemplarCardDisplay.from_estimator(
    clf, X[row], X[rows], y[rows], texts=intents.texts[rows], title=intents.texts[row]
)
plt.show()
