"""Exact q and d against the bare distance product and a faiss search.

10,000 queries against 10,000 exemplars in 384 dimensions, two threads, in turn;
medians. The index of faiss is built before its search is timed; of ours both times are
printed, with the index and without. faiss is optional::

    python benchmarks/neighbors_speed.py

NumPy and faiss bring an OpenBLAS each, and the older one may not know the processor
and fall back to slow kernels. The kernels in use are printed; name one that both have
in the environment to compare the searches and not the libraries below them::

    OPENBLAS_CORETYPE=Haswell python benchmarks/neighbors_speed.py
"""

import argparse
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from sdm_sklearn._neighbors import ExactNeighbors

N_CLASSES = 10
OURS = {
    "with": "q and d, index and search",
    "without": "q and d, search",
}


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

    def build():
        index = ExactNeighbors(support, y, predictions, N_CLASSES)
        index.query(queries[:1], codes[:1])  # some of it is made on first use
        return index

    built = build()
    contenders = {
        "float32 product a @ b.T": lambda: queries32 @ support32.T,
        "float32 distance matrix": distance_product,
        "float64 product a @ b.T": lambda: queries @ support.T,
        OURS["with"]: lambda: build().query(queries, codes),
        OURS["without"]: lambda: built.query(queries, codes),
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
    medians = {name: np.median(values) for name, values in seconds.items()}
    print(
        f"{arguments.rows} x {arguments.rows} in {arguments.dimensions} dimensions, "
        f"{arguments.threads} threads, medians of {arguments.repeats}"
    )
    print(f"{'':38}  of q and d, with index / search alone")
    for name, median in medians.items():
        ratios = [median / medians[ours] for ours in OURS.values()]
        print(f"{name:28}{median:8.3f} s  {ratios[0]:6.2f} / {ratios[1]:.2f}")
    for library in threadpool_info():
        if library["user_api"] == "blas":
            package = Path(library["filepath"]).parent.name.split(".")[0]
            kernels = library["architecture"]
            print(f"{package}: OpenBLAS {library['version']}, {kernels}")


if __name__ == "__main__":
    main()
