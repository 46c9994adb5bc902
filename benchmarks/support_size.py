"""What fewer exemplars cost, and how to choose them.

A share of the training rows becomes exemplars: drawn at random in proportion to the
classes ("stratified"), at random and as many of each class as of any other ("balanced",
as SDMClassifier's `support_size`), or as many of each class, those nearest to the
centres of k-means ("k-means"). "domains" are CLINC150's ten domains; of the "skewed"
ones domain k keeps every (k+1)-th row. DIR holds the sets that `_common.py` names::

    python benchmarks/support_size.py --data DIR --results rules.jsonl
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from _common import Results, domains_of_intents, load
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import UndefinedMetricWarning

from sdm_sklearn import NoRegionWarning, SDMClassifier, ThinEvidenceWarning
from sdm_sklearn._splits import Split
from sdm_sklearn._support import choose_exemplars, count_exemplars
from sdm_sklearn.metrics import (
    aurc,
    class_conditional_accuracy_score,
    ood_roc_auc_score,
    prediction_conditional_accuracy_score,
)

ALPHA = 0.9
KEYS = ("set", "rule", "size", "seed")
SETS = ["intents", "domains", "skewed", "sentiment", "sentiment-smollm2"]


def choose_stratified(X, y, n_exemplars, random_state):
    """Draw in proportion to the classes, at least one of each."""
    place = np.empty(len(y))
    for code in np.unique(y):
        members = random_state.permutation(np.flatnonzero(y == code))
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
        place[members[0]] = 0
    return np.sort(np.argsort(place, kind="stable")[:n_exemplars])


def choose_balanced(X, y, n_exemplars, random_state):
    """Draw as many of each class, as SDMClassifier does."""
    return choose_exemplars(y, n_exemplars, random_state)


def choose_by_kmeans(X, y, n_exemplars, random_state):
    """Take the rows nearest to the centres of k-means, as many of each class."""
    drawn = choose_exemplars(y, n_exemplars, random_state)
    chosen = []
    for code, n_clusters in enumerate(np.bincount(y[drawn])):
        members = np.flatnonzero(y == code)
        rows = X[members].astype(np.float32)
        clusters = MiniBatchKMeans(n_clusters, n_init=1, random_state=random_state)
        centers = clusters.fit(rows).cluster_centers_
        distances = np.square(centers).sum(axis=1)[:, None] - 2 * centers @ rows.T
        for row in distances:
            nearest = row.argmin()
            distances[:, nearest] = np.inf  # one center each
            chosen.append(members[nearest])
    return np.sort(chosen)


RULES = {
    "stratified": choose_stratified,
    "balanced": choose_balanced,
    "k-means": choose_by_kmeans,
}


class ChosenSupport(SDMClassifier):
    """SDMClassifier with exemplars chosen by a rule, an attribute set before `fit`."""

    def _split(self, X, *arguments):
        self.rows = X
        return super()._split(X, *arguments)

    def _choose_support(self, codes, train, calibration, n_classes, random_state):
        y = codes[train]
        n_exemplars = count_exemplars(self.support_size, len(train), n_classes)
        exemplars = np.arange(len(y))
        if n_exemplars < len(y):
            exemplars = self.rule(self.rows[train], y, n_exemplars, random_state)
        return Split(train, calibration, exemplars)


def load_set(name, data, seed):
    """Return a task with class codes."""
    if name not in ("domains", "skewed"):
        return load(name, data, seed)
    task = load("clinc150", data, seed)
    domain_of = domains_of_intents(data)
    y_fit = domain_of[task.y_fit]
    kept = slice(None)
    if name == "skewed":
        number = np.empty(len(y_fit), dtype=int)
        for code in np.unique(y_fit):
            members = y_fit == code
            number[members] = np.arange(members.sum())
        kept = number % (y_fit + 1) == 0
    return task._replace(
        X_fit=task.X_fit[kept],
        y_fit=y_fit[kept],
        y_test=domain_of[task.y_test],
    )


def run(name, rule, size, seed, data):
    """Fit and judge once."""
    task = load_set(name, data, seed)
    clf = ChosenSupport(
        ALPHA,
        n_restarts=1,
        region="per_class",
        support_size=size,
        random_state=seed,
    )
    clf.rule = RULES[rule]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoRegionWarning)
        warnings.simplefilter("ignore", ThinEvidenceWarning)
        started = time.process_time()
        clf.fit(task.X_fit, task.y_fit)
        seconds = time.process_time() - started
    test, ood = clf.signals(task.X_test), clf.signals(task.X_ood)
    answered = clf.classes_[clf.region_report_["answered"]]
    rows = (task.y_test, test.prediction, test.accepted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)  # then NaN
        worst = [
            np.min(score(*rows, labels=answered)) if len(answered) else np.nan
            for score in (
                class_conditional_accuracy_score,
                prediction_conditional_accuracy_score,
            )
        ]
    # One number for the order of rows, which no region blurs.
    area = aurc(task.y_test, test.prediction, test.rescaled_similarity)
    ood_area = ood_roc_auc_score(test.rescaled_similarity, ood.rescaled_similarity)
    return {
        "answered": len(answered) / len(clf.classes_),
        "share": test.accepted.mean(),
        "class": worst[0],
        "prediction": worst[1],
        "ood": ood.accepted.mean(),
        "aurc": area,
        "ood auroc": ood_area,
        "cpu s": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1.0, 0.3, 0.1])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    results = Results(arguments.results, KEYS)
    for name in arguments.sets:
        rows = {}
        for size in arguments.sizes:
            for rule in RULES:
                if size == 1.0 and rule != "stratified":
                    continue
                records = [
                    results.get(
                        lambda key=(name, rule, size, seed): run(*key, arguments.data),
                        name,
                        rule,
                        size,
                        seed,
                    )
                    for seed in range(arguments.seeds)
                ]
                rows[f"{size:.0%} {rule if size < 1 else ''}"] = records
        print(f"\n{name}, alpha={ALPHA:g}, {arguments.seeds} seeds")
        show(rows)


def show(rows):
    """Print the mean of each column over the seeds, for each rule."""
    columns = list(next(iter(rows.values()))[0])[len(KEYS) :]
    print(" " * 16 + "".join(f"{column:>12}" for column in columns) + "     < alpha")
    for label, records in rows.items():
        cells = [
            f"{np.nanmean([record[column] for record in records]):12.3f}"
            for column in columns
        ]
        n_low = sum(min(r["class"], r["prediction"]) < ALPHA for r in records)
        print(f"{label:16}" + "".join(cells) + f"{n_low:7} of {len(records)}")


if __name__ == "__main__":
    main()
