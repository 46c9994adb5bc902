"""Searches of `neighbors` against exact search: answers, time per epoch, time of a fit.

Rows are CLINC150's sentences in ten groups of 15 intents, as many as asked for: mixed
pairwise within an intent, with a little noise. DIR holds clinc150_minilm.npz and the
sets of `_common.py`::

    python benchmarks/nndescent.py answers --data DIR
    python benchmarks/nndescent.py search --data DIR
    python benchmarks/nndescent.py crossover --data DIR
    python benchmarks/nndescent.py fit --data DIR
"""

import argparse
import time
import warnings

import numpy as np
from _common import fit_sdm, load, make_rows
from sklearn.neighbors import NearestNeighbors

from sdm_sklearn import NoRegionWarning, SDMClassifier
from sdm_sklearn._neighbors import ExactNeighbors
from sdm_sklearn._pruned import PrunedNeighbors
from sdm_sklearn._search import NNDescentGraph, make_search


def train(data, n_support, n_epochs=3):
    """Exemplars of an adaptor trained on a part of the rows, and those of an epoch on.

    Both for the same rows: what a warm start has to go from and to.
    """
    X, y = make_rows(data, n_support + 20_000)
    adaptors = []
    for epochs in (n_epochs, n_epochs + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoRegionWarning)
            clf = SDMClassifier(
                0.9, n_restarts=1, max_epochs=epochs, patience=None, random_state=0
            ).fit(X[n_support:], y[n_support:])
        projection = clf._models[0].projection
        coordinates, logits = projection.project(X[:n_support])
        adaptors.append((coordinates, y[:n_support], logits.argmax(axis=1), 10))
    return adaptors


def answers(arguments):
    """Count over-estimates of q, its loss, and compare accepted shares."""
    methods = {
        "pruned": "pruned",
        "nndescent": "nndescent",
        "NearestNeighbors": NearestNeighbors(),
    }
    print(
        f"{'':14}{'search':18}{'rows':>8}{'q too large':>13}{'mean loss':>11}"
        f"{'share':>9}{'of exact':>10}"
    )
    for name in arguments.sets:
        totals = {method: [] for method in methods}
        for seed in range(arguments.seeds):
            task = load(name, arguments.data, seed)
            rows = np.concatenate([task.X_test, task.X_ood])
            exact = fit_sdm(task, 0.9, seed, neighbors="exact", max_epochs=30)
            expected = exact.signals(rows)
            for method, value in methods.items():
                clf = fit_sdm(task, 0.9, seed, neighbors=value, max_epochs=30)
                found = clf.signals(rows)
                loss = 1 - found.similarity / np.maximum(expected.similarity, 1)
                totals[method].append(
                    (
                        len(rows),
                        (found.similarity > expected.similarity).sum(),
                        loss[expected.similarity > 0].mean(),
                        found.accepted[: len(task.X_test)].mean(),
                        expected.accepted[: len(task.X_test)].mean(),
                    )
                )
        for method, values in totals.items():
            n, over, loss, share, of_exact = np.transpose(values)
            print(
                f"{name:14}{method:18}{n.sum():8.0f}{over.sum():13.0f}"
                f"{loss.mean():11.4f}{share.mean():9.3f}{of_exact.mean():10.3f}"
            )


def search(arguments):
    """Time the search of one epoch, the index built anew."""
    before, now = train(arguments.data, arguments.rows)
    own = np.arange(arguments.rows)
    started = time.perf_counter()
    PrunedNeighbors(*(a[:500] if i < 3 else a for i, a in enumerate(now))).query(
        now[0][:500], now[2][:500]
    )
    print(f"first use of the compiled search: {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    NNDescentGraph().find(now[0][:500])
    print(f"first use of NN-descent: {time.perf_counter() - started:.1f} s")

    def descend(graph):
        start = graph.find(now[0])
        return PrunedNeighbors(*now).query(now[0], now[2], own, start)

    def warm_graph():
        graph = NNDescentGraph()
        graph.find(before[0])
        return graph

    contenders = {
        "exact": (lambda: None, lambda _: ExactNeighbors(*now)),
        "pruned": (lambda: None, lambda _: PrunedNeighbors(*now)),
        "NN-descent, cold": (NNDescentGraph, descend),
        "NN-descent, warm start": (warm_graph, descend),
        "of these the graph alone": (warm_graph, lambda graph: graph.find(now[0])),
    }
    seconds = {name: [] for name in contenders}
    results = {}
    for _ in range(arguments.repeats):
        for name, (prepare, run) in contenders.items():
            prepared = prepare()
            started = time.perf_counter()
            result = run(prepared)
            if name in ("exact", "pruned"):
                result = result.query(now[0], now[2], own)
            seconds[name].append(time.perf_counter() - started)
            results[name] = result
    exact = np.median(seconds["exact"])
    similarity = results["exact"][0]
    print(
        f"{arguments.rows} exemplars of {now[0].shape[1]} dimensions, q median "
        f"{np.median(similarity):.0f}, mean {similarity.mean():.0f}; medians of "
        f"{arguments.repeats}"
    )
    for name, values in seconds.items():
        over = ""
        if name != "of these the graph alone":
            over = f"   q too large: {(results[name][0] > similarity).sum()}"
            over += f", too small: {(results[name][0] < similarity).sum()}"
        median = np.median(values)
        print(f"{name:26}{median:8.2f} s   exact / this {exact / median:6.2f}{over}")


def crossover(arguments):
    """Time both searches at growing numbers of exemplars."""
    support, y, predictions, n_classes = train(arguments.data, 50_000)[1]
    make_search("pruned", support[:99], y[:99], predictions[:99], n_classes).query(
        support[:9], predictions[:9]
    )
    print(f"{'exemplars':>10}{'exact s':>10}{'pruned s':>10}{'ratio':>8}")
    for n in (2_000, 5_000, 10_000, 20_000, 50_000):
        index = (support[:n], y[:n], predictions[:n], n_classes)
        seconds = {"exact": [], "pruned": []}
        for _ in range(arguments.repeats):
            for name, values in seconds.items():
                started = time.perf_counter()
                make_search(name, *index).query(
                    support[:n], predictions[:n], np.arange(n)
                )
                values.append(time.perf_counter() - started)
        exact, pruned = map(np.median, seconds.values())
        print(f"{n:10}{exact:10.3f}{pruned:10.3f}{exact / pruned:8.2f}")


def fit(arguments):
    """Time a whole fit, the compilers warm."""
    X, y = make_rows(arguments.data, arguments.rows)
    seconds, histories = {}, {}
    for name in ("pruned", "exact"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoRegionWarning)
            clf = SDMClassifier(
                0.9,
                n_restarts=1,
                max_epochs=arguments.epochs,
                patience=None,
                neighbors=name,
                random_state=0,
            )
            if name == "pruned":
                clf.fit(X[:2000], y[:2000])
            started = time.perf_counter()
            clf.fit(X, y)
        seconds[name] = time.perf_counter() - started
        histories[name] = clf.history_
        print(f"{name:10}{seconds[name]:8.1f} s")
    print(
        f"{len(X)} x {X.shape[1]}, {arguments.epochs} epochs, 1 restart: exact / pruned"
        f" {seconds['exact'] / seconds['pruned']:.2f}, same history: "
        f"{histories['exact'] == histories['pruned']}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = {"answers": answers, "search": search, "crossover": crossover}
    commands["fit"] = fit
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sets", nargs="+", default=["intents", "factcheck"])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.rows is None:
        arguments.rows = 100_000 if arguments.command == "fit" else 50_000
    commands[arguments.command](arguments)


if __name__ == "__main__":
    main()
