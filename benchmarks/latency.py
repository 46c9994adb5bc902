"""The time of a single answer: `predict_selective` of one row, and of a batch.

Synthetic embeddings (384 features, 10 overlapping classes, float32). The bare product
is the distance of the row's search coordinates to every exemplar, |b|^2 - 2ab, and its
argmin in NumPy: what any exact answer has to do. In turn, medians::

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


def measure(clf, repeats):
    """Return median and 99th percentile of one row, and medians of bare products."""
    X, _ = make_rows(repeats, seed=2)
    coordinates, _ = clf._models[0].project(X)
    points = clf._models[0].support[0]
    products = {}
    for dtype in (np.float64, np.float32):
        support = points.astype(dtype)
        norms = np.square(support).sum(axis=1)
        queries = coordinates.astype(dtype)
        products[f"bare product, {np.dtype(dtype).name}"] = (
            lambda row, support=support, norms=norms, queries=queries: (
                norms - 2 * (support @ queries[row])
            ).argmin()
        )
    contenders = {
        "predict_selective": lambda row: clf.predict_selective(X[row : row + 1]),
        **products,
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
        f"{'exemplars':>9}{'one row, ms':>13}{'99 %':>8}{'float64 product':>17}"
        f"{'ratio':>7}{'float32':>9}{'ratio':>7}{'batch, rows/s':>15}"
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
                f"{n_exemplars:9}{ours:13.3f}{worst:8.3f}{bare[0]:17.3f}"
                f"{ours / bare[0]:7.2f}{bare[1]:9.3f}{ours / bare[1]:7.2f}{rate:15.0f}"
            )


if __name__ == "__main__":
    main()
