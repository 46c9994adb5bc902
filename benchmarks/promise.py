"""Does alpha hold on new rows? Regions of the paper beside certified ones.

Every split draws its own rows to fit and to test on. A split breaks the promise if the
accuracy of any class that is answered, by prediction or by true class, is significantly
below alpha on the held-out rows (one-sided exact binomial test, p < 0.05)::

    python benchmarks/promise.py --data DIR --splits 100 --results promise.jsonl
    python benchmarks/promise.py --data DIR --sets sentiment --splits 10

With `--results FILE` each split is written to that file when it ends, and one already
in there is not run again; `--splits 0` prints what the file holds. DIR holds the files
named in `SETS`. The softmax is that of a logistic regression on the same training rows,
with thresholds certified in the same way.
"""

import argparse
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from _common import Results, domains_of_intents, timed, with_rule
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn import NoRegionWarning, SDMClassifier, ThinEvidenceWarning
from sdm_sklearn._certify import certify_thresholds
from sdm_sklearn._evidence import Scored, count_accepted

ALPHAS = (0.8, 0.9, 0.95)
CONFIDENCE = 0.9
# Name -> (file of the set, file of rows out of distribution or None, rows to fit on).
SETS = {
    "domains": ("clinc150_minilm", None, 6000),
    "sentiment": ("sentiment_minilm", "sentiment_ood_minilm", 6000),
    "sentiment-1:10": ("sentiment_minilm", "sentiment_ood_minilm", 3800),
    "sentiment-smollm2": ("sentiment_smollm2", "sentiment_ood_smollm2", 1500),
    "factcheck": ("factcheck_minilm", "factcheck_shuffled_minilm", 4000),
    "factcheck-smollm2": ("factcheck_smollm2", "factcheck_shuffled_smollm2", 4000),
    "civil": ("civil_comments_ambiguous_minilm", "sentiment_ood_minilm", 750),
    "clinc150": ("clinc150_minilm", None, 15000),
}
N_OOD = 1200
METHODS = (
    "paper, joint",
    "paper, per class",
    "certified, joint",
    "certified, per class",
    "softmax certified, joint",
    "softmax certified, per class",
)


def load(name, data):
    """Return X, y and rows out of distribution."""
    source, ood_source, _ = SETS[name]
    with np.load(Path(data) / f"{source}.npz") as archive:
        X, y = archive["X"], archive["y"]
    if ood_source is None:
        known = y >= 0
        X, X_ood = X[known], X[~known]
        y = y[known]
        if name == "domains":
            y = domains_of_intents(data)[y]
        return X, y, X_ood
    with np.load(Path(data) / f"{ood_source}.npz") as archive:
        X_ood = archive["X"]
    if name.endswith("1:10"):
        negative, positive = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
        rows = np.append(negative, positive[: len(negative) // 10])
        X, y = X[rows], y[rows]
    return X, y, X_ood


def run_split(X, y, X_ood, n_fit, seed, with_softmax):
    """Return one record per method and alpha, under "records"."""
    random = np.random.RandomState(seed)
    order = random.permutation(len(X))
    fit, test = order[:n_fit], order[n_fit:]
    X_ood = X_ood[random.permutation(len(X_ood))[:N_OOD]]
    records = []
    for guarantee in ("paper", "certified"):
        clf = SDMClassifier(
            alpha=0.9,
            n_restarts=1,
            guarantee=guarantee,
            confidence=CONFIDENCE,
            random_state=seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoRegionWarning)
            warnings.simplefilter("ignore", ThinEvidenceWarning)
            clf.fit(X[fit], y[fit])
        for kind in ("joint", "per_class"):
            asked = with_rule(clf, region=kind)
            codes, accepted = asked._decide_at(X[test], ALPHAS)
            _, accepted_ood = asked._decide_at(X_ood, ALPHAS)
            answered = [asked._find_regions(a)[1][0].answered for a in ALPHAS]
            method = f"{guarantee}, {kind.replace('_', ' ')}"
            records += judge(method, codes, y[test], accepted, accepted_ood, answered)
    if with_softmax:
        records += run_softmax(clf, X[fit], y[fit], X[test], y[test], X_ood)
    return {"records": records}


def run_softmax(clf, X_fit, y_fit, X_test, y_test, X_ood):
    """Certify thresholds on a logistic regression, on the rows that `clf` used."""
    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=0.01, max_iter=1000)
    ).fit(X_fit[clf.support_indices_].astype(np.float32), y_fit[clf.support_indices_])
    n_classes = len(model.classes_)

    def score(X, y=None):
        probability = model.predict_proba(X.astype(np.float32))
        return Scored(probability.argmax(axis=1), y, probability.max(axis=1))

    planning = score(X_fit[clf.calibration_indices_], y_fit[clf.calibration_indices_])
    certify = score(X_fit[clf.certify_indices_], y_fit[clf.certify_indices_])
    test, ood = score(X_test, y_test), score(X_ood)
    records = []
    for kind in ("joint", "per class"):
        masks, masks_ood, answered = [], [], []
        for alpha in ALPHAS:
            # The floor that keeps SDM's thresholds above alpha is not the softmax's.
            low, width = alpha, 1 - alpha
            thresholds, _ = certify_thresholds(
                planning._replace(score=low + width * planning.score),
                certify._replace(score=low + width * certify.score),
                n_classes,
                alpha,
                CONFIDENCE,
                kind == "per class",
            )
            masks.append(low + width * test.score >= thresholds[test.codes])
            masks_ood.append(low + width * ood.score >= thresholds[ood.codes])
            answered.append(np.isfinite(thresholds))
        method = f"softmax certified, {kind}"
        records += judge(method, test.codes, test.y, masks, masks_ood, answered)
    return records


def judge(method, codes, y, accepted, accepted_ood, answered):
    """Return one record per alpha: what is accepted, and which statements fail."""
    records = []
    for i, alpha in enumerate(ALPHAS):
        n, n_wrong = count_accepted(codes, y, accepted[i], len(answered[i]))
        n, n_wrong = n[:, answered[i]], n_wrong[:, answered[i]]
        stated = n > 0
        p = binom.sf(n_wrong - 1, n, 1 - alpha)[stated]
        records.append(
            {
                "method": method,
                "alpha": alpha,
                "share": float(np.mean(accepted[i])),
                "ood": float(np.mean(accepted_ood[i])),
                "answered": int(answered[i].sum()),
                "worst": float(np.min(1 - n_wrong[stated] / n[stated], initial=1.0)),
                "smallest_p": float(np.min(p, initial=1.0)),
                "n_statements": int(stated.sum()),
            }
        )
    return records


def print_table(name, splits, n_fit, n_test):
    """Print a line per alpha and method."""
    print(
        f"\n{name}: {n_fit} rows to fit on, {n_test} held out, {len(splits)} splits, "
        f"confidence {CONFIDENCE:g}"
    )
    print(
        f"{'alpha':>5}  {'method':30}{'answers':>8}{'share':>8}{'OOD':>8}"
        f"{'classes':>9}{'worst':>8}{'below':>12}{'corrected':>12}"
    )
    for alpha in ALPHAS:
        for method in METHODS:
            rows = [
                record
                for split in splits
                for record in split
                if record["alpha"] == alpha and record["method"] == method
            ]
            if not rows:
                continue
            some = [row for row in rows if row["share"] > 0]
            worst = f"{np.median([r['worst'] for r in some]):.3f}" if some else "-"
            below = sum(row["smallest_p"] < 0.05 for row in rows)
            corrected = sum(
                row["smallest_p"] * row["n_statements"] < 0.05 for row in some
            )
            cells = [np.mean([r[key] for r in rows]) for key in ("share", "ood")]
            n_classes = np.mean([row["answered"] for row in rows])
            print(
                f"{alpha:5g}  {method:30}{len(some):8}{cells[0]:8.3f}{cells[1]:8.3f}"
                f"{n_classes:9.1f}{worst:>8}{f'{below} of {len(rows)}':>12}"
                f"{f'{corrected} of {len(rows)}':>12}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder of the sets")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--results", type=Path, help="file to keep finished splits in")
    arguments = parser.parse_args()
    results = Results(arguments.results, ("set", "seed"))
    for name in arguments.sets:
        X, y, X_ood = load(name, arguments.data)
        n_fit = SETS[name][2]
        for seed in range(arguments.splits):
            run = partial(run_split, X, y, X_ood, n_fit, seed, name != "clinc150")
            results.get(timed(run), name, seed)
        splits = [record["records"] for record in results.matching(set=name)]
        if splits:
            print_table(name, splits, n_fit, len(X) - n_fit)


if __name__ == "__main__":
    main()
