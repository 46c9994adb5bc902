"""Rank wrong labels: accepted rows whose label disagrees, against cleanlab's ranking.

A share of the labels is replaced by another class at random. Every row is judged by a
model that did not train on it, of a 3-fold split; each ranking is scored on the planted
errors alone, so that an error that was in the data already counts as a false alarm::

    pip install cleanlab
    python benchmarks/label_errors.py --data DIR --results label_errors.jsonl
    python benchmarks/label_errors.py --sets intents --seeds 3   # bundled data only

cleanlab ranks by self-confidence and lists what its confident learning finds, once on
out-of-fold probabilities of a logistic regression and once on those of SDM. SDM lists
the accepted rows whose label is not the prediction, largest q' first; "all" goes on
with the rejected ones that disagree. With `--results FILE` each seed is written to that
file when it ends, and one already in there is not run again.
"""

import argparse
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from _common import SHARED, Results, Task, fit_sdm, load
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn.metrics import coverage_score

NOISE = 0.02
FIRST = 50
KEYS = ("share", "planted accepted")


def plant_errors(y, n_classes, random):
    """Return y with a share of its codes replaced, and which rows these are."""
    planted = np.zeros(len(y), bool)
    planted[random.permutation(len(y))[: round(NOISE * len(y))]] = True
    shift = random.randint(1, n_classes, size=len(y))
    return np.where(planted, (y + shift) % n_classes, y), planted


def judge_out_of_fold(X, y, folds, alpha, seed):
    """Return SDM's probabilities, q' and acceptance, each from another fold's fit."""
    proba = np.zeros((len(y), y.max() + 1))
    q = np.zeros(len(y))
    accepted = np.zeros(len(y), bool)
    for fit, test in folds:
        task = Task(X[fit], y[fit], X[test], y[test], X[:0])
        clf = fit_sdm(task, alpha, seed, n_restarts=1, region="per_class")
        signals = clf.signals(X[test])
        proba[test] = clf.predict_proba(X[test])
        q[test] = signals.rescaled_similarity
        accepted[test] = signals.accepted
    return proba, q, accepted


def run_seed(name, data, seed, alpha):
    """Return the scores of every ranking on one draw of wrong labels."""
    task = load(name, data, seed)
    X = np.concatenate([task.X_fit, task.X_test]).astype(np.float32)
    classes, y = np.unique(
        np.concatenate([task.y_fit, task.y_test]), return_inverse=True
    )
    y, planted = plant_errors(y, len(classes), np.random.RandomState(seed))
    folds = list(StratifiedKFold(3, shuffle=True, random_state=seed).split(X, y))
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    proba = cross_val_predict(logistic, X, y, cv=folds, method="predict_proba")
    sdm_proba, q, accepted = judge_out_of_fold(X, y, folds, alpha, seed)

    disagrees = np.flatnonzero(sdm_proba.argmax(axis=1) != y)
    # Rejected rows stand behind all accepted ones, by the same order among themselves.
    disagrees = disagrees[np.lexsort((-q[disagrees], ~accepted[disagrees]))]
    rows = {
        "SDM, accepted": score(disagrees[accepted[disagrees]], planted),
        "SDM, all": score(disagrees, planted),
    }
    for method, probabilities in (("softmax", proba), ("SDM", sdm_proba)):
        quality = get_label_quality_scores(y, probabilities)
        rows[f"self-confidence, {method}"] = score(np.argsort(quality), planted)
        listed = find_label_issues(
            y, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1
        )
        rows[f"cleanlab issues, {method}"] = score(listed, planted)
    return {
        "n": len(y),
        "planted": int(planted.sum()),
        "share": coverage_score(accepted),
        "planted accepted": float(accepted[planted].mean()),
        "rows": rows,
    }


def score(ranked, planted):
    """Return how many rows are listed, and what the ranking finds.

    Recall is that of the whole list and of as many rows as errors were planted.
    """
    found = planted[ranked]
    first = found[:FIRST]
    return {
        "listed": len(ranked),
        "precision at 50": first.mean() if len(first) else np.nan,
        "precision": found.mean() if len(found) else np.nan,
        "recall": found.sum() / planted.sum(),
        "recall at planted": found[: planted.sum()].sum() / planted.sum(),
    }


def print_set(records):
    """Print means over the seeds, one line per ranking."""
    first = records[0]
    share, among = (np.mean([r[k] for r in records]) for k in KEYS)
    print(
        f"\n{first['set']}: {first['n']} rows, {first['planted']} wrong labels "
        f"planted, {len(records)} seeds; accepted {share:.3f} of all rows and "
        f"{among:.3f} of those with a wrong label at alpha = {first['alpha']:g}"
    )
    names = list(first["rows"]["SDM, all"])
    print(f"{'':26}" + "".join(f"{name:>19}" for name in names))
    for method in first["rows"]:
        values = [
            np.nanmean([record["rows"][method][name] for record in records])
            for name in names
        ]
        cells = [f"{values[0]:.0f}"] + [f"{value:.3f}" for value in values[1:]]
        print(f"{method:26}" + "".join(f"{cell:>19}" for cell in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder of the larger sets")
    parser.add_argument("--sets", nargs="+", choices=["intents", *SHARED])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--alpha", type=float, default=0.8)
    parser.add_argument("--results", type=Path, help="file to keep finished seeds in")
    arguments = parser.parse_args()
    results = Results(arguments.results, ("set", "seed", "alpha"))
    larger = ["sentiment", "clinc150"] if arguments.data else []
    for name in arguments.sets or ["intents", *larger]:
        records = []
        for seed in range(arguments.seeds):
            run = partial(run_seed, name, arguments.data, seed, arguments.alpha)
            with warnings.catch_warnings():
                # Few rows of a class, or no region, are outcomes here.
                warnings.simplefilter("ignore")
                records.append(results.get(run, name, seed, arguments.alpha))
        print_set(records)


if __name__ == "__main__":
    main()
