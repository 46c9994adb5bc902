"""Do classes with few calibration rows gain by sharing a threshold with their like?

All 150 intents of CLINC150. Classes are grouped by k-means on the quantiles of their
true-class outputs on the calibration half, as in clustered conformal prediction; then a
group plays the part of a class in the region by class: one q' and one threshold, from
all its calibration rows. "own, else" keeps the region of a class that has one and takes
that of its group where it has none. "unequal" fits a fifth of the rows of every second
intent::

    python benchmarks/clustered_classes.py --data DIR --results clustered.jsonl

With `--results FILE` each seed is written to that file when it ends, and one already in
there is not run again; `--seeds 0` prints what the file holds.
"""

import argparse
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from _common import Results, timed
from scipy.stats import binom
from sklearn.cluster import KMeans

from sdm_sklearn import SDMClassifier
from sdm_sklearn._evidence import count_accepted
from sdm_sklearn._region import Region, find_region, in_region

ALPHAS = (0.9, 0.95)
# Name -> rows to fit on, and the share kept of those of every second intent.
FITS = {"15000": (15000, 1.0), "5000": (5000, 1.0), "unequal": (15000, 0.2)}
N_GROUPS = (1, 5, 20)
QUANTILES = np.linspace(0.1, 0.9, 9)


def group_classes(rows, n_classes, n_groups):
    """Return the group of each class, by the quantiles of its true-class outputs."""
    quantiles = [
        np.quantile(rows.true_probability[rows.y == code], QUANTILES)
        for code in range(n_classes)
    ]
    return KMeans(n_groups, n_init=10, random_state=0).fit_predict(quantiles)


def find_group_regions(rows, groups, alpha):
    """Find the region by class with groups in place of classes."""
    by_group = rows._replace(y=groups[rows.y], prediction=groups[rows.prediction])
    region = find_region(by_group, groups.max() + 1, alpha, "per_class")
    return Region(region.q_min[groups], region.thresholds[groups])


def find_regions(rows, n_classes, alpha):
    """Return method -> region."""
    own = find_region(rows, n_classes, alpha, "per_class")
    regions = {"by class": own}
    for n_groups in N_GROUPS:
        groups = group_classes(rows, n_classes, n_groups)
        shared = find_group_regions(rows, groups, alpha)
        regions[f"groups: {n_groups}"] = shared
        regions[f"own, else groups: {n_groups}"] = Region(
            np.where(own.answered, own.q_min, shared.q_min),
            np.where(own.answered, own.thresholds, shared.thresholds),
        )
    return regions


def run_seed(X, y, X_ood, name, seed):
    """Return one record per method and alpha, under "records"."""
    random = np.random.RandomState(seed)
    n_fit, kept = FITS[name]
    fit, test = np.split(random.permutation(len(X)), [n_fit])
    fit = fit[(y[fit] % 2 == 0) | (random.uniform(size=n_fit) < kept)]
    clf = SDMClassifier(alpha=0.9, n_restarts=1, region="per_class", random_state=seed)
    clf.fit(X[fit], y[fit])
    n_classes = len(clf.classes_)
    rows, ood = clf.signals(X[test]), clf.signals(X_ood)
    records = []
    for alpha in ALPHAS:
        calibration = clf._model.calibration_rows
        regions = find_regions(calibration, n_classes, alpha)
        for method, region in regions.items():
            accepted, accepted_ood = (
                in_region(
                    some.similarity,
                    some.rescaled_similarity,
                    some.probability,
                    some.prediction,
                    region,
                )
                for some in (rows, ood)
            )
            n, n_wrong = count_accepted(rows.prediction, y[test], accepted, n_classes)
            # Nothing is said of classes that are not answered.
            n, n_wrong = n * region.answered, n_wrong * region.answered
            records.append(
                {
                    "method": method,
                    "alpha": alpha,
                    "share": float(accepted.mean()),
                    "ood": float(accepted_ood.mean()),
                    "answered": int(region.answered.sum()),
                    "n": n.tolist(),
                    "wrong": n_wrong.tolist(),
                }
            )
    return {"n_fit": len(fit), "n_test": len(test), "records": records}


def print_table(name, seeds):
    """Print a line per alpha and method; accuracies are those of all seeds together."""
    n_fit = round(np.mean([seed["n_fit"] for seed in seeds]))
    n_test = seeds[0]["n_test"]
    print(f"\n{name}: {n_fit} rows to fit on, {n_test} held out, {len(seeds)} seeds")
    print(
        f"{'alpha':>5}  {'method':24}{'share':>8}{'OOD':>8}{'classes':>9}"
        f"{'accuracy':>10}{'worst':>8}{'below':>7}{'significant':>13}"
    )
    for alpha in ALPHAS:
        for method in dict.fromkeys(record["method"] for record in seeds[0]["records"]):
            rows = [
                record
                for seed in seeds
                for record in seed["records"]
                if (record["alpha"], record["method"]) == (alpha, method)
            ]
            share, ood, answered = (
                np.mean([row[key] for row in rows])
                for key in ("share", "ood", "answered")
            )
            n, wrong = (
                np.sum([row[key] for row in rows], axis=0) for key in ("n", "wrong")
            )
            line = f"{alpha:5g}  {method:24}{share:8.3f}{ood:8.3f}{answered:9.1f}"
            some = n > 0
            if some.any():
                accuracy = 1 - wrong[some] / n[some]
                p = binom.sf(wrong - 1, n, 1 - alpha)[some]
                line += (
                    f"{1 - wrong[0].sum() / n[0].sum():10.4f}{accuracy.min():8.3f}"
                    f"{(accuracy < alpha).sum():7}{(p < 0.05).sum():13}"
                )
            print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder of clinc150_minilm.npz")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="file to keep finished seeds in")
    arguments = parser.parse_args()
    with np.load(Path(arguments.data) / "clinc150_minilm.npz") as archive:
        X, y = archive["X"], archive["y"]
    known = y >= 0
    results = Results(arguments.results, ("fit", "seed"))
    for name in FITS:
        for seed in range(arguments.seeds):
            run = partial(run_seed, X[known], y[known], X[~known], name, seed)
            with warnings.catch_warnings():
                # Classes without a region, or with a thin one: an outcome here.
                warnings.simplefilter("ignore")
                results.get(timed(run), name, seed)
        seeds = results.matching(fit=name)
        if seeds:
            print_table(name, seeds)


if __name__ == "__main__":
    main()
