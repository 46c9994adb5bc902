"""What the benchmarks share: data sets, methods to compare, kept results, tables."""

import copy
import json
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn import NoRegionWarning, SDMClassifier, ThinEvidenceWarning
from sdm_sklearn.datasets import load_intents
from sdm_sklearn.metrics import (
    class_conditional_accuracy_score,
    coverage_score,
    prediction_conditional_accuracy_score,
    worst_conditional_accuracy_score,
)

PUBLISHED_SCHEDULE = {
    "n_filters": 1000,
    "learning_rate": 1e-5,
    "weight_averaging": False,
    "batch_size": 50,
    "max_epochs": 200,
    "patience": None,
    "standardize": "global",
}

# The intents are numbered by name, so that fifteen in a row have nothing in common.
INTENTS_PER_GROUP = 15


class Task(NamedTuple):
    """Rows to fit and to test on, and rows out of distribution."""

    X_fit: np.ndarray
    y_fit: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    X_ood: np.ndarray


class Outcome(NamedTuple):
    """What one method predicts and accepts on the test rows and out of distribution."""

    predictions: np.ndarray
    accepted: np.ndarray
    accepted_ood: np.ndarray


# Name -> (file of the set, file of rows out of distribution or None).
SHARED = {
    "clinc150": ("clinc150_minilm", None),
    "sentiment": ("sentiment_minilm", "sentiment_ood_minilm"),
    "sentiment-smollm2": ("sentiment_smollm2", "sentiment_ood_smollm2"),
    "factcheck": ("factcheck_minilm", "factcheck_shuffled_minilm"),
    "factcheck-smollm2": ("factcheck_smollm2", "factcheck_shuffled_smollm2"),
    "civil": ("civil_comments_ambiguous_minilm", None),
}


def load(name, data, seed):
    """Return a data set split at random, 2/3 to fit and 1/3 to test on.

    CLINC150's rows out of distribution are its out-of-scope queries; Civil Comments has
    none, so it takes the movie reviews of the sentiment set.
    """
    if name == "intents":
        bunch = load_intents()
        X, y, X_ood = bunch.data, bunch.target, bunch.ood_data
    else:
        source, ood_source = SHARED[name]
        with np.load(Path(data) / f"{source}.npz") as archive:
            X, y = archive["X"], archive["y"]
        if name == "clinc150":
            X, y, X_ood = X[y >= 0], y[y >= 0], X[y < 0]
        else:
            ood_source = ood_source or "sentiment_minilm"
            with np.load(Path(data) / f"{ood_source}.npz") as archive:
                X_ood = archive["X"]
    order = np.random.RandomState(seed).permutation(len(X))
    cut = 2 * len(X) // 3
    fit, test = order[:cut], order[cut:]
    return Task(X[fit], y[fit], X[test], y[test], X_ood)


def domains_of_intents(data):
    """Return the code of the domain of each of CLINC150's intents."""
    import pandas as pd  # the demo runs without it

    with np.load(Path(data) / "clinc150_minilm.npz") as archive:
        y = archive["y"]
    domains = pd.read_parquet(Path(data) / "clinc150.parquet")["domain"]
    known = y >= 0
    domain_of = np.empty(y.max() + 1, dtype=int)
    domain_of[y[known]] = pd.factorize(domains[known], sort=True)[0]
    return domain_of


def make_rows(data, n, seed=0, noise=0.02):
    """Draw n rows between two sentences of the same intent, in ten groups of intents.

    As many rows as asked for, from CLINC150's 22,500 sentences: what a benchmark of
    time and memory needs. Accuracies on them are too good.
    """
    with np.load(Path(data) / "clinc150_minilm.npz") as archive:
        X, y = archive["X"].astype(np.float32), archive["y"]
    order = np.argsort(y, kind="stable")
    order = order[y[order] >= 0]
    X, y = X[order], y[order]
    random = np.random.RandomState(seed)
    first = random.randint(len(X), size=n)
    counts = np.bincount(y)
    begin = np.cumsum(counts) - counts
    second = begin[y[first]] + (random.rand(n) * counts[y[first]]).astype(int)
    share = random.uniform(0, 0.5, size=(n, 1)).astype(np.float32)
    rows = X[first] + share * (X[second] - X[first])
    rows += noise * random.randn(*rows.shape).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, y[first] // INTENTS_PER_GROUP


def fit_sdm(task, alpha, seed, **parameters):
    """Fit SDMClassifier; no region, or a thin one, is an outcome, not a surprise."""
    clf = SDMClassifier(alpha=alpha, random_state=seed, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoRegionWarning)
        warnings.simplefilter("ignore", ThinEvidenceWarning)
        return clf.fit(task.X_fit, task.y_fit)


def fit_softmax(task):
    """Fit the classifiers without an adaptor: name of their softmax -> model.

    The softmax is that of a logistic regression on all rows to fit on; its temperature
    is fitted by 3-fold cross-validation.
    """
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    scaled = CalibratedClassifierCV(
        logistic, method="temperature", cv=3, ensemble=False
    )
    models = {"softmax": logistic, "temperature-scaled": scaled}
    for model in models.values():
        model.fit(task.X_fit.astype(np.float32), task.y_fit)
    return models


def decide(X, alpha, softmax, clf):
    """Run every method on X; return name -> (predictions, accepted)."""
    decisions = {}
    for name, model in softmax.items():
        proba = model.predict_proba(X.astype(np.float32))
        predictions = model.classes_[proba.argmax(axis=1)]
        if name == "softmax":
            decisions["no reject"] = predictions, np.ones(len(proba), bool)
        decisions[f"{name} >= alpha"] = predictions, proba.max(axis=1) >= alpha
    signals = clf.signals(X, alpha=alpha)
    decisions["SDM >= alpha"] = signals.prediction, signals.probability >= alpha
    decisions["SDM region"] = signals.prediction, signals.accepted
    return decisions


def compare(task, alpha, seed, clf=None):
    """Run every method; return name -> Outcome, and the fitted SDMClassifier."""
    softmax = fit_softmax(task)
    if clf is None:
        clf = fit_sdm(task, alpha, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoRegionWarning)
        warnings.simplefilter("ignore", ThinEvidenceWarning)
        test = decide(task.X_test, alpha, softmax, clf)
        ood = decide(task.X_ood, alpha, softmax, clf)
    outcomes = {name: Outcome(*test[name], ood[name][1]) for name in test}
    return outcomes, clf


def summarize(task, outcome):
    """Return the numbers of one row of the table."""
    classes = np.unique(task.y_fit)
    row = {"share": coverage_score(outcome.accepted)}
    for name, score in (
        ("class", class_conditional_accuracy_score),
        ("prediction", prediction_conditional_accuracy_score),
    ):
        with warnings.catch_warnings():
            # A class with nothing accepted has no accuracy: it does not count below.
            warnings.simplefilter("ignore")
            accuracy = score(
                task.y_test, outcome.predictions, outcome.accepted, labels=classes
            )
        accuracy = accuracy[~np.isnan(accuracy)]
        row[f"{name} worst"] = accuracy.min() if len(accuracy) else np.nan
        row[f"{name} mean"] = accuracy.mean() if len(accuracy) else np.nan
    row["ood share"] = coverage_score(outcome.accepted_ood)
    return row


def print_table(rows_of, alpha):
    """Print one line per method from name -> list of rows, one row per seed.

    With several seeds the numbers are means over those that accept anything, and the
    last column counts the seeds whose worst conditional accuracy is below alpha.
    """
    several = len(next(iter(rows_of.values()))) > 1
    print(
        f"{'':28}{'accepted':>10}{'class-conditional':>22}{'prediction-conditional':>25}"
        f"{'OOD':>11}" + ("      seeds" if several else "")
    )
    heads = ["share", "worst", "mean", "worst", "mean", "accepted"]
    heads += [f"< {alpha:g}"] if several else []
    print(f"{'':28}" + _line(heads))
    for name, rows in rows_of.items():
        cells = []
        for key in rows[0]:
            values = np.array([row[key] for row in rows])
            known = values[~np.isnan(values)]
            cells.append(f"{known.mean():.3f}" if len(known) else "-")
        if several:
            worst = [min(row["class worst"], row["prediction worst"]) for row in rows]
            answered = [value for value in worst if not np.isnan(value)]
            below = sum(value < alpha for value in answered)
            cells.append(f"{below} of {len(answered)}")
        print(f"{name:28}" + _line(cells))


def with_rule(clf, **changes):
    """Return a copy of a fitted classifier that decides by another rule.

    What a fit with other `region` or `conservative` would give, without that fit.
    """
    other = copy.copy(clf)
    other._rule = clf._rule._replace(**changes)
    return other


class Results:
    """Finished runs, kept in a file if there is one, so that none is run again.

    Parameters
    ----------
    path : Path or None
        File with one record a line, in JSON.
    keys : tuple of str
        Entries of a record that tell runs apart.
    """

    def __init__(self, path, keys):
        self.path = path
        self.keys = keys
        self.records = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                self._know(json.loads(line))

    def get(self, run, *key):
        """Return the record of a run; make and keep it with `run()` if it is new."""
        if key not in self.records:
            record = dict(zip(self.keys, key, strict=True)) | run()
            self._know(record)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps(record) + "\n")
        return self.records[key]

    def matching(self, **entries):
        """Return the records with these entries, in the order of their keys."""
        return [
            record
            for _, record in sorted(self.records.items())
            if entries.items() <= {key: record[key] for key in self.keys}.items()
        ]

    def _know(self, record):
        self.records[tuple(record[key] for key in self.keys)] = record


def timed(run):
    """Return a run that puts its CPU seconds into its record."""

    def run_with_seconds():
        start = time.process_time()
        record = run()
        return {"cpu": time.process_time() - start} | record

    return run_with_seconds


def judge(clf, task, alphas):
    """Return accepted share and worst conditional accuracy at each alpha, in a row."""
    row = []
    for alpha in alphas:
        with warnings.catch_warnings():
            # No region, or nothing accepted in a class: shown as numbers.
            warnings.simplefilter("ignore")
            signals = clf.signals(task.X_test, alpha=alpha)
            worst = worst_conditional_accuracy_score(
                task.y_test, signals.prediction, signals.accepted
            )
        row += [signals.accepted.mean(), worst]
    return row


def _line(cells):
    widths = (10, 12, 10, 15, 10, 11, 11)
    return "".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=False))
