"""The time of a single answer: `predict_selective` of one row, and of a batch.

Synthetic embeddings (384 features, 10 overlapping classes, float32). Beside it stands a
bare product in NumPy, |b|^2 - 2ab and its argmin, over the exemplars' embeddings, which
is a nearest-neighbour search without a model, and over their search coordinates (64, in
float64), which is all that an exact answer has to do. In turn, medians::

    python benchmarks/latency.py --exemplars 1000 10000 20000 100000
"""

import argparse
import time
import warnings

import numpy as np
from threadpoolctl import threadpool_limits
from updates import make_rows

from sdm_sklearn import NoRegionWarning, SDMClassifier

BATCH = 10_000


def fit(n_exemplars):
    """Fit a classifier whose training half has so many rows."""
    X, y = make_rows(2 * n_exemplars, seed=1)
    clf = SDMClassifier(n_restarts=1, max_epochs=2, patience=None, random_state=0)
    return clf.fit(X, y)


def product(support, queries):
    """Return a function that finds the exemplar nearest to a query by its number."""
    norms = np.square(support).sum(axis=1)
    return lambda row: (norms - 2 * (support @ queries[row])).argmin()


def measure(clf, repeats):
    """Return the seconds of every answer and of every bare product."""
    X, _ = make_rows(repeats, seed=2)
    model = clf._models[0]
    embeddings, _ = make_rows(len(model.support[0]), seed=1)
    contenders = {
        "predict_selective": lambda row: clf.predict_selective(X[row : row + 1]),
        "embeddings": product(embeddings, X),
        "coordinates": product(model.support[0], model.project(X)[0]),
    }
    seconds = {name: [] for name in contenders}
    for row in range(repeats):
        for name, run in contenders.items():
            start = time.perf_counter()
            run(row)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--exemplars", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", NoRegionWarning)
    print(
        f"{'exemplars':>9}{'one row, ms':>13}{'99 %':>8}{'embeddings':>12}"
        f"{'ratio':>7}{'coordinates':>13}{'ratio':>7}{'batch, rows/s':>15}"
    )
    with threadpool_limits(arguments.threads):
        for n_exemplars in arguments.exemplars:
            clf = fit(n_exemplars)
            seconds = measure(clf, arguments.repeats)
            ours, *bare = (np.median(values) * 1e3 for values in seconds.values())
            worst = np.quantile(seconds["predict_selective"], 0.99) * 1e3
            X, _ = make_rows(BATCH, seed=3)
            clf.predict_selective(X)  # a warm-up
            start = time.perf_counter()
            clf.predict_selective(X)
            rate = BATCH / (time.perf_counter() - start)
            print(
                f"{n_exemplars:9}{ours:13.2f}{worst:8.2f}{bare[0]:12.2f}"
                f"{ours / bare[0]:7.2f}{bare[1]:13.2f}{ours / bare[1]:7.2f}{rate:15.0f}"
            )


if __name__ == "__main__":
    main()
