"""Exact q and d against the bare distance product and a faiss search.

10,000 queries against 10,000 exemplars in 384 dimensions, two threads, in turn;
medians. faiss is optional::

    python benchmarks/neighbors_speed.py
"""

import argparse
import time

import numpy as np
from threadpoolctl import threadpool_limits

from sdm_sklearn._neighbors import ExactNeighbors

N_CLASSES = 10


def make_points(n, n_dimensions, seed):
    """Unit rows around class centres, as sentence embeddings are."""
    random = np.random.RandomState(0)
    centers = random.randn(N_CLASSES, n_dimensions)
    random = np.random.RandomState(seed)
    y = random.randint(N_CLASSES, size=n)
    X = centers[y] + 1.5 * random.randn(n, n_dimensions)
    predictions = np.where(random.rand(n) < 0.05, random.randint(N_CLASSES, size=n), y)
    return X / np.linalg.norm(X, axis=1, keepdims=True), y, predictions


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    support, y, predictions = make_points(arguments.rows, arguments.dimensions, 1)
    queries, _, codes = make_points(arguments.rows, arguments.dimensions, 2)
    support32, queries32 = support.astype(np.float32), queries.astype(np.float32)

    def distance_product():
        """|a|^2 + |b|^2 - 2ab in float32, and nothing done with it."""
        squared = queries32 @ support32.T
        squared *= -2
        squared += np.square(support32).sum(axis=1)
        squared += np.square(queries32).sum(axis=1)[:, None]
        return squared

    contenders = {
        "float32 product a @ b.T": lambda: queries32 @ support32.T,
        "float32 distance matrix": distance_product,
        "float64 product a @ b.T": lambda: queries @ support.T,
        "exact q and d (build + query)": lambda: ExactNeighbors(
            support, y, predictions, N_CLASSES
        ).query(queries, codes),
    }
    try:
        import faiss
    except ImportError:
        print("faiss is not installed: pip install faiss-cpu to compare with it")
    else:
        faiss.omp_set_num_threads(arguments.threads)
        index = faiss.IndexFlatL2(arguments.dimensions)
        index.add(support32)
        contenders["faiss IndexFlatL2, k = 1000"] = lambda: index.search(
            queries32, 1000
        )

    seconds = {name: [] for name in contenders}
    with threadpool_limits(arguments.threads):
        for repeat in range(arguments.repeats + 1):
            for name, run in contenders.items():
                started = time.perf_counter()
                run()
                if repeat:  # the first round warms up
                    seconds[name].append(time.perf_counter() - started)
    ours = np.median(seconds["exact q and d (build + query)"])
    print(
        f"{arguments.rows} x {arguments.rows} in {arguments.dimensions} dimensions, "
        f"{arguments.threads} threads, medians of {arguments.repeats}"
    )
    for name, values in seconds.items():
        median = np.median(values)
        print(f"{name:32}{median:8.3f} s   q and d take {ours / median:5.2f} of it")


if __name__ == "__main__":
    main()
