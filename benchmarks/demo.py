"""The main job on the bundled data: learn banking queries, answer only what is safe.

Run by `make demo`. It prints what each way of rejecting accepts and how right it is
then, in distribution and on out-of-scope queries; shows three accepted and three
rejected queries with the reasons; and writes one figure::

    python benchmarks/demo.py --figure demo.png
"""

import argparse

import matplotlib
import numpy as np
from _common import Task, compare, print_table, summarize
from sklearn.model_selection import train_test_split

from sdm_sklearn.datasets import load_intents
from sdm_sklearn.plotting import SimilarityDistanceDisplay

matplotlib.use("Agg")
ALPHA = 0.9
ABOUT_THE_TABLE = """
Softmax: a logistic regression on all rows to fit on. These intents are easy: it is
right enough without rejecting anything, and SDM pays with coverage. What it buys is in
the last column: queries of no known intent, which no accuracy counts, are left alone.
"""
ABOUT_THE_SIGNALS = """\
q: nearest exemplars in a row that support the prediction. d: 1 as near as an exemplar,
0 beyond all calibration queries of some intent. q': q, less where the SDM output is
low. Accepted is what has q' >= {q_min:.1f} and an output of at least its class's
threshold."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--figure", default="demo.png")
    arguments = parser.parse_args()

    intents = load_intents()
    rows = np.arange(len(intents.target))
    fit, test = train_test_split(
        rows, test_size=1 / 3, stratify=intents.target, random_state=0
    )
    task = Task(
        intents.data[fit],
        intents.target[fit],
        intents.data[test],
        intents.target[test],
        intents.ood_data,
    )
    outcomes, clf = compare(task, ALPHA, seed=0)

    print(
        f"{len(fit)} banking queries of {len(clf.classes_)} intents to fit on, "
        f"{len(test)} to test on, {len(task.X_ood)} out-of-scope queries (OOD). "
        f"alpha = {ALPHA}.\n"
    )
    print_table({name: [summarize(task, o)] for name, o in outcomes.items()}, ALPHA)
    print(ABOUT_THE_TABLE)
    print_queries(clf, intents.texts[test], intents.texts[fit], task.X_test)
    draw(clf, task, outcomes, arguments.figure)
    print(f"\nFigure: {arguments.figure}")


def print_queries(clf, texts, support_texts, X):
    """Explain three accepted and three rejected queries by their signals."""
    signals = clf.signals(X)
    print(ABOUT_THE_SIGNALS.format(q_min=clf.q_min_))
    for title, chosen in (
        ("Accepted", np.flatnonzero(signals.accepted)),
        ("Rejected", np.flatnonzero(~signals.accepted)),
    ):
        print(f"\n{title}:")
        # Evenly spread over q', so that clear and close cases are seen.
        order = chosen[np.argsort(signals.rescaled_similarity[chosen])]
        for row in order[np.linspace(0, len(order) - 1, 3).astype(int)]:
            label = signals.prediction[row]
            nearest = str(support_texts[signals.nearest_index[row]])
            threshold = clf.thresholds_[list(clf.classes_).index(label)]
            print(
                f"  {str(texts[row])!r} -> {label}\n"
                f"    q = {signals.similarity[row]:.0f}, "
                f"d = {signals.distance[row]:.2f}, "
                f"q' = {signals.rescaled_similarity[row]:.1f}, SDM output "
                f"{signals.probability[row]:.4f} (threshold {threshold:.4f})\n"
                f"    nearest exemplar: {nearest!r}"
            )


def draw(clf, task, outcomes, path):
    """Draw the shares accepted by each method, and the plane of d and q'."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    names = list(outcomes)
    height = np.arange(len(names))[::-1]
    shares = [outcome.accepted.mean() for outcome in outcomes.values()]
    ood = [outcome.accepted_ood.mean() for outcome in outcomes.values()]
    left.barh(height + 0.2, shares, 0.38, color="0.55", label="banking queries")
    left.barh(
        height - 0.2, ood, 0.38, color="white", edgecolor="black", hatch="///",
        label="out-of-scope queries",
    )  # fmt: skip
    for y, share, share_ood in zip(height, shares, ood, strict=True):
        left.text(share + 0.01, y + 0.2, f"{share:.2g}", va="center", fontsize=8)
        left.text(
            share_ood + 0.01, y - 0.2, f"{share_ood:.2g}", va="center", fontsize=8
        )
    left.set(yticks=height, yticklabels=names, xlabel="share accepted", xlim=(0, 1.12))
    left.legend(loc="upper center", bbox_to_anchor=(0.4, -0.14), ncols=2, fontsize=8)
    left.set_title(f"What is answered at alpha = {ALPHA}")

    SimilarityDistanceDisplay.from_estimator(
        clf, task.X_test, X_ood=task.X_ood, ax=right
    )
    right.set_title("Support and nearness of each query")
    right.legend(fontsize=7, loc="upper left")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
