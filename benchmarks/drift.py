"""Error rates and power of tests of drift, on rows that are known to be like or unlike.

Half of a data set is fitted; the other half is in distribution. A window of rows from
the other half is tested against the calibration rows, or against a reference of other
rows from that half. For power, a share of the window is replaced by rows of another
origin: out-of-scope queries for the intents, tweets for the movie reviews.

    python benchmarks/drift.py --data DIR --fits 10
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from scipy.stats import fisher_exact, ks_2samp, mannwhitneyu

from sdm_sklearn import NoRegionWarning, SDMClassifier
from sdm_sklearn.datasets import load_intents

SIGNALS = ("similarity", "distance", "accepted")
ALPHA = {"intents": 0.8, "sentiment": 0.7}
LEVEL = 0.05


def load(name, data):
    """Return rows, labels, and rows of another origin."""
    if name == "intents":
        bunch = load_intents()
        return bunch.data, bunch.target, bunch.ood_data
    with np.load(Path(data) / "sentiment_minilm.npz") as archive:
        X, y = archive["X"], archive["y"]
    with np.load(Path(data) / "sentiment_ood_minilm.npz") as archive:
        tweets = np.char.startswith(archive["source"].astype(str), "semeval")
        return X, y, archive["X"][tweets]


def pvalues(new, old):
    """Return the p-value of every test that was considered."""
    found = {}
    for name in ("similarity", "distance"):
        found[f"{name} KS"] = ks_2samp(new[name], old[name], method="asymp").pvalue
        found[f"{name} MWU"] = mannwhitneyu(
            new[name], old[name], method="asymptotic"
        ).pvalue
    table = [[s["accepted"].sum(), (~s["accepted"]).sum()] for s in (new, old)]
    found["accepted Fisher"] = fisher_exact(table).pvalue
    for test in ("KS", "MWU"):
        three = [found[f"similarity {test}"], found[f"distance {test}"]]
        found[f"overall {test}"] = 3 * min(*three, found["accepted Fisher"])
    return found


def run(name, data, n_fits, n_windows):
    """Return the share of rejections at the 5 % level, by case and test."""
    X, y, X_ood = load(name, data)
    hits: dict = {}
    for seed in range(n_fits):
        random = np.random.RandomState(seed)
        order = random.permutation(len(X))
        fit, held_out = np.array_split(order, 2)
        clf = SDMClassifier(alpha=ALPHA[name], max_epochs=40, random_state=seed)
        clf.fit(X[fit], y[fit])
        rows, other = clf.signals(X[held_out]), clf.signals(X_ood)
        calibration = clf.signals(X[fit][clf.calibration_indices_])
        n_reference = len(calibration.accepted)
        for size in (100, 500):
            for _ in range(n_windows):
                shuffled = random.permutation(len(held_out))
                window, rest = shuffled[:size], shuffled[size:]
                references = {
                    "calibration": calibration,
                    "held-out": pick(rows, rest[:n_reference]),
                }
                strangers = random.permutation(len(X_ood))
                for share in (0.0, 0.1, 0.2):
                    n = int(share * size)
                    new = join(pick(rows, window[n:]), pick(other, strangers[:n]))
                    for reference, old in references.items():
                        for test, pvalue in pvalues(new, old).items():
                            key = (size, share, reference, test)
                            hits.setdefault(key, []).append(pvalue < LEVEL)
    return {key: np.mean(values) for key, values in hits.items()}


def pick(signals, rows):
    """Return the signals of some rows."""
    return {
        name: signals[name][rows] for name in ("similarity", "distance", "accepted")
    }


def join(first, second):
    """Return the signals of two sets of rows."""
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder of the larger data sets")
    parser.add_argument("--fits", type=int, default=10)
    parser.add_argument("--windows", type=int, default=50)
    args = parser.parse_args()
    warnings.simplefilter("ignore", NoRegionWarning)
    for name in ["intents", *(["sentiment"] if args.data else [])]:
        shares = run(name, args.data, args.fits, args.windows)
        tests = list(dict.fromkeys(test for *_, test in shares))
        print(f"\n{name}: share of windows with p < {LEVEL}")
        print("rows foreign reference   ", *(f"{test:>15}" for test in tests))
        for key in dict.fromkeys(key[:3] for key in shares):
            size, share, reference = key
            values = (f"{shares[(*key, test)]:15.3f}" for test in tests)
            print(f"{size:4d} {share:7.0%} {reference:12s}", *values)


if __name__ == "__main__":
    main()
