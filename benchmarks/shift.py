"""Rows of the same kind, of a shifted kind, and unlike anything: what helps where?

A classifier is fitted on some rows and asked about several streams. In a stream of the
same kind, or of one whose labels mean the same (tweets instead of reviews, intents that
were never seen instead of others of their domain), accepted rows should be right; rows
that have no right answer should not be accepted::

    python benchmarks/shift.py --data DIR --seeds 5 --results shift.jsonl
    python benchmarks/shift.py --data DIR --sets factcheck --seeds 1

DIR holds the npz files named below. With `--results FILE` each seed is written to that
file when it ends, and one already in there is not run again; `--seeds 0` prints what
the file holds.

"checked" answers a window of 500 rows only if `drift` has p >= 0.01, against the
calibration half or against a reference that `fit` has not seen. "X labelled OOD" has
some rows of the stream X among its exemplars with a label that is no class, "X
labelled" with their own labels. "calibrated on X" trains anew with them as its
calibration half, "certified on X" sets half of these aside for a certificate. No stream
holds rows that went into a model.
"""

import argparse
import copy
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _common import Results, domains_of_intents, fit_sdm, fit_softmax, timed, with_rule
from _common import Task as Known
from scipy.stats import binom

from sdm_sklearn import SDMClassifier
from sdm_sklearn._evidence import count_accepted

ALPHAS = (0.9, 0.8)
N_WINDOW, LEAST_P = 500, 0.01
N_STREAM, N_REFERENCE = 2000, 1000
KNOWN, SHIFTED, UNKNOWN = "same kind", "shifted", "unknown"


class Stream(NamedTuple):
    """Rows that come in, and what they are; y is None without right answers."""

    kind: str
    X: np.ndarray
    y: np.ndarray | None

    def take(self, rows):
        return Stream(self.kind, self.X[rows], None if self.y is None else self.y[rows])


class Case(NamedTuple):
    """Rows to fit on, a reference of the same kind, streams, and labelled rows."""

    X: np.ndarray
    y: np.ndarray
    reference: np.ndarray
    streams: dict[str, Stream]
    pools: dict[str, Stream]


class Set(NamedTuple):
    """How to read a set, rows to fit on, alpha of fit, and stream -> rows to label.

    A set is asked at its own alpha, too, where 0.9 answers next to nothing.
    """

    load: object
    n_fit: int
    alpha: float
    pools: dict[str, int]


def read(data, file):
    """Return the arrays of a file."""
    with np.load(Path(data) / f"{file}.npz") as archive:
        return {name: archive[name] for name in archive.files}


def load_sentiment(data, model, random):
    """Reviews; other sources have the same labels, shuffled words hardly any."""
    rows = read(data, f"sentiment_{model}")
    X, y, is_test = rows["X"], rows["y"], rows["split"] == "test"
    streams = {"reviews": Stream(KNOWN, X[is_test], y[is_test])}
    other = read(data, f"sentiment_ood_{model}")
    for title, sources in {
        "imdb": ["uci_imdb"],
        "shops": ["uci_amazon", "uci_yelp"],
        "drugs": ["drugs_com"],
        "tweets": ["semeval2017_4a"],
    }.items():
        mask = np.isin(other["source"], sources)
        if mask.any():
            streams[title] = Stream(SHIFTED, other["X"][mask], other["y"][mask])
    for title, file in {
        "shuffled": "sentiment_shuffled",
        "shuffled tweets": "sentiment_ood_shuffled",
    }.items():
        rows = read(data, f"{file}_{model}")
        streams[title] = Stream(UNKNOWN, rows["X"], rows["y"])
    foreign = {"minilm": "clinc150", "smollm2": "factcheck"}[model]
    title = {"clinc150": "queries", "factcheck": "statements"}[foreign]
    streams[title] = Stream(UNKNOWN, read(data, f"{foreign}_{model}")["X"], None)
    return X[~is_test], y[~is_test], streams


def load_domains(data, random):
    """Return queries by domain; 3 intents of each domain are never fitted."""
    rows = read(data, "clinc150_minilm")
    known = rows["y"] >= 0
    y = np.full(len(known), -1)
    y[known] = domains_of_intents(data)[rows["y"][known]]
    unseen = np.zeros(len(known), bool)
    for code in range(y.max() + 1):
        intents = random.permutation(np.unique(rows["y"][y == code]))
        unseen |= np.isin(rows["y"], intents[:3])
    is_test = rows["split"] == "test"
    old = known & ~unseen

    def stream(kind, mask):
        return Stream(kind, rows["X"][mask], y[mask] if kind != UNKNOWN else None)

    streams = {
        "queries": stream(KNOWN, old & is_test),
        "unseen intents": stream(SHIFTED, unseen),
        "out of scope": stream(UNKNOWN, ~known),
        "reviews": Stream(UNKNOWN, read(data, "sentiment_minilm")["X"], None),
    }
    fit = old & ~is_test
    return rows["X"][fit], y[fit], streams


def load_factcheck(data, random):
    """Return statements; those of the paper's test are of another origin."""
    rows = read(data, "factcheck_minilm")
    X, y, is_test = rows["X"], rows["y"], rows["split"] == "test"
    fit = np.flatnonzero(~is_test)
    held_out, fit = np.split(random.permutation(fit), [1000])
    shuffled = read(data, "factcheck_shuffled_minilm")
    streams = {
        "statements": Stream(KNOWN, X[held_out], y[held_out]),
        "paper's test": Stream(SHIFTED, X[is_test], y[is_test]),
        "shuffled": Stream(UNKNOWN, shuffled["X"], shuffled["y"]),
    }
    return X[fit], y[fit], streams


SETS = {
    "sentiment": Set(
        lambda data, random: load_sentiment(data, "minilm", random),
        6000,
        0.8,
        {"tweets": 500, "shops": 500},
    ),
    "sentiment-smollm2": Set(
        lambda data, random: load_sentiment(data, "smollm2", random),
        2000,
        0.8,
        {"tweets": 500},
    ),
    "domains": Set(
        load_domains, 6000, 0.9, {"unseen intents": 500, "out of scope": 500}
    ),
    "factcheck": Set(load_factcheck, 4000, 0.8, {"shuffled": 120}),
}


def load(name, data, seed):
    """Return the rows of one seed, of which no two parts share any."""
    random = np.random.RandomState(seed)
    spec = SETS[name]
    X, y, streams = spec.load(data, random)
    order = random.permutation(len(X))
    fit, rest = np.split(order, [spec.n_fit])
    pools = {}
    for title, stream in streams.items():
        rows = random.permutation(len(stream.X))
        n = spec.pools.get(title, 0)
        if n:
            pools[title] = stream.take(rows[:n])
        streams[title] = stream.take(rows[n : n + N_STREAM])
    return Case(X[fit], y[fit], X[rest[:N_REFERENCE]], streams, pools)


def run_seed(name, data, seed):
    """Fit everything; return one record per stream, method and alpha."""
    case = load(name, data, seed)
    alpha = SETS[name].alpha
    known = Known(case.X, case.y, case.X[:0], case.y[:0], case.X[:0])
    softmax = fit_softmax(known)["softmax"]
    together = fit_sdm(known, alpha, seed, ensemble=True)
    certified = fit_sdm(known, alpha, seed, ensemble=True, guarantee="certified")
    plain = best_of(together)
    models = {
        "region": plain,
        "conservative": with_rule(plain, conservative=True),
        "ensemble": together,
        "ensemble, conservative": with_rule(together, conservative=True),
        "certified": best_of(certified),
        "certified, ensemble": certified,
    }
    for title, pool in case.pools.items():
        strangers = np.full(len(pool.X), -1)
        models[f"{title} labelled OOD"] = add(plain, pool.X, strangers)
        models[f"ensemble, {title} labelled OOD"] = add(together, pool.X, strangers)
        if pool.kind == SHIFTED:
            models[f"{title} labelled"] = add(plain, pool.X, pool.y)
            for word, guarantee in (
                ("calibrated", "paper"),
                ("certified", "certified"),
            ):
                clf = calibrate(case, pool, alpha, seed, guarantee)
                models[f"{word} on {title}"] = clf
    records, passed = [], {}
    for title, stream in case.streams.items():
        windows = np.array_split(
            np.arange(len(stream.X)), max(1, len(stream.X) // N_WINDOW)
        )
        checks = {
            "checked": check(plain, stream.X, windows, None),
            "checked, reference": check(plain, stream.X, windows, case.reference),
        }
        passed[title] = {key: float(mask.mean()) for key, mask in checks.items()}
        proba = softmax.predict_proba(stream.X.astype(np.float32))
        for asked in ALPHAS:
            decisions = {
                "softmax >= alpha": (proba.argmax(axis=1), proba.max(axis=1) >= asked)
            }
            for method, clf in models.items():
                decisions[method] = ask(clf, stream.X, asked)
            codes, accepted = decisions["region"]
            for method, inside in checks.items():
                decisions[method] = codes, accepted & inside
            for method, (codes, accepted) in decisions.items():
                record = {"stream": title, "alpha": asked, "method": method}
                records.append(record | judge(codes, accepted, stream.y, plain))
    kinds = {title: stream.kind for title, stream in case.streams.items()}
    sizes = {title: len(stream.X) for title, stream in case.streams.items()}
    return {"kinds": kinds, "sizes": sizes, "passed": passed, "records": records}


def best_of(ensemble):
    """Return what the same fit gives with ``ensemble=False``."""
    clf = copy.copy(ensemble).set_params(ensemble=False)
    clf._models, clf._regions = clf._models[:1], clf._regions[:1]
    return clf


def add(clf, X, y):
    """Return a copy that has these rows among its exemplars."""
    return copy.copy(clf).add_to_support(X, y)


def calibrate(case, pool, alpha, seed, guarantee):
    """Fit with labelled rows of a stream as calibration half."""
    halves = np.split(np.arange(len(case.X) + len(pool.X)), [len(case.X)])
    clf = SDMClassifier(
        alpha=alpha, cv=[halves], guarantee=guarantee, random_state=seed
    )
    return clf.fit(np.append(case.X, pool.X, axis=0), np.append(case.y, pool.y))


def check(clf, X, windows, reference):
    """Return which rows are in a window that looks like the reference."""
    passed = np.zeros(len(X), bool)
    for window in windows:
        passed[window] = clf.drift(X[window], reference=reference).pvalue >= LEAST_P
    return passed


def ask(clf, X, alpha):
    """Return predictions and what is accepted of them; classes are their codes."""
    _, accepted = clf.predict_selective(X, alpha=alpha, return_mask=True)
    return clf.predict(X), accepted


def judge(codes, accepted, y, clf):
    """Return the accepted share, and counts by predicted and by true class."""
    record = {"share": float(np.mean(accepted))}
    if y is not None:
        n, n_wrong = count_accepted(codes, y, accepted, len(clf.classes_))
        record |= {"n": n.tolist(), "wrong": n_wrong.tolist()}
    return record


def worst(rows, alpha):
    """Return the worst accuracy of all seeds together, and the seeds that break alpha.

    A seed breaks it if any of its accuracies is significantly below (one-sided exact
    test, p < 0.05).
    """
    rows = [row for row in rows if row["share"] > 0]
    if not rows or "n" not in rows[0]:
        return "-"
    n, wrong = (np.array([row[key] for row in rows]) for key in ("n", "wrong"))
    broken = (binom.sf(wrong - 1, n, 1 - alpha) < 0.05).any(axis=(1, 2)).sum()
    some = n.sum(axis=0) > 0
    accuracy = 1 - wrong.sum(axis=0)[some] / n.sum(axis=0)[some]
    return f"{accuracy.min():.3f} {broken}/{len(rows)}"


def print_set(name, seeds):
    """Print the tables of one set: shares, and accuracies where there are labels."""
    first = seeds[0]
    methods = list(dict.fromkeys(record["method"] for record in first["records"]))
    streams = list(first["kinds"])
    labelled = {row["stream"] for row in first["records"] if "n" in row}
    spec = SETS[name]
    print(f"\n{name}: {spec.n_fit} rows to fit on, {len(seeds)} seeds")
    for title in streams:
        print(f"  {title}: {first['kinds'][title]}, {first['sizes'][title]} rows")
    for alpha in sorted({0.9, spec.alpha}, reverse=True):
        rows = {
            (stream, method): [
                record
                for seed in seeds
                for record in seed["records"]
                if (record["stream"], record["method"], record["alpha"])
                == (stream, method, alpha)
            ]
            for stream in streams
            for method in methods
        }
        print_block(f"alpha = {alpha:g}: accepted share", streams)
        for method in methods:
            cells = [
                f"{np.mean([row['share'] for row in rows[stream, method]]):.3f}"
                for stream in streams
            ]
            print_line(method, cells, streams)
        with_labels = [title for title in streams if title in labelled]
        print_block(f"alpha = {alpha:g}: worst accuracy, seeds below", with_labels)
        for method in methods:
            if not any(
                row["share"] for title in streams for row in rows[title, method]
            ):
                continue
            cells = [worst(rows[stream, method], alpha) for stream in with_labels]
            print_line(method, cells, with_labels)
    print_block("rows in windows that pass the check", streams)
    for method in first["passed"][streams[0]]:
        cells = [
            f"{np.mean([seed['passed'][stream][method] for seed in seeds]):.2f}"
            for stream in streams
        ]
        print_line(method, cells, streams)


def print_block(title, streams):
    print_line(f"\n{title}", streams, streams)


def print_line(name, cells, streams):
    widths = [max(len(stream), 9) + 2 for stream in streams]
    width = 37 + name.startswith("\n")
    line = "".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
    print(f"{name:{width}}{line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder of the sets")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, help="file to keep finished seeds in")
    arguments = parser.parse_args()
    results = Results(arguments.results, ("set", "seed"))
    for name in arguments.sets:
        for seed in range(arguments.seeds):
            run = partial(run_seed, name, arguments.data, seed)
            with warnings.catch_warnings():
                # No region, or one on thin evidence: an outcome here.
                warnings.simplefilter("ignore")
                results.get(timed(run), name, seed)
        seeds = results.matching(set=name)
        if seeds:
            print_set(name, seeds)


if __name__ == "__main__":
    main()
