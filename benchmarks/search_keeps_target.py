"""Does a search refitted on coverage at accuracy keep its target on held-out rows?

For each seed the bundled intents are split into two thirds to search on and one third
held out. A grid search over alpha and the number of filters is refitted on
`coverage_at_accuracy_scorer(target)`; the chosen model is judged on the held-out rows.

    python benchmarks/search_keeps_target.py --seeds 10 --target 0.9
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn import SDMClassifier, predict_selective
from sdm_sklearn import metrics as m
from sdm_sklearn.datasets import load_intents


def search(target, seed, n_jobs):
    """Return the unfitted search."""
    sdm = SDMClassifier(random_state=seed)
    return GridSearchCV(
        Pipeline([("scale", StandardScaler()), ("sdm", sdm)]),
        {"sdm__alpha": [0.7, 0.8, 0.85], "sdm__n_filters": [16, 64]},
        scoring={
            "coverage": m.coverage_scorer(),
            "worst": m.worst_conditional_accuracy_scorer(replace_undefined_by=0.0),
            "coverage_at_accuracy": m.coverage_at_accuracy_scorer(target),
        },
        refit="coverage_at_accuracy",
        cv=3,
        n_jobs=n_jobs,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--n-jobs", type=int, default=2)
    args = parser.parse_args()
    X, y = load_intents(return_X_y=True)
    kept = []
    print("seed  alpha  filters  coverage  accuracy  worst  kept  seconds")
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        X_train, X_test, y_train, y_test = train_test_split(
            X, y, test_size=1 / 3, stratify=y, random_state=seed
        )
        start = time.perf_counter()
        with warnings.catch_warnings():
            # Folds without a region at an alpha score 0: that is what is searched.
            warnings.simplefilter("ignore", UserWarning)
            model = search(args.target, seed, args.n_jobs).fit(X_train, y_train)
        seconds = time.perf_counter() - start
        labels, accepted = predict_selective(model, X_test, return_mask=True)
        worst = m.worst_conditional_accuracy_score(
            y_test, labels, accepted, replace_undefined_by=0.0
        )
        accuracy = m.selective_accuracy_score(
            y_test, labels, accepted, replace_undefined_by=0.0
        )
        kept.append(worst >= args.target)
        chosen = model.best_params_
        print(
            f"{seed:4}  {chosen['sdm__alpha']:5}  {chosen['sdm__n_filters']:7}  "
            f"{np.mean(accepted):8.3f}  {accuracy:8.3f}  {worst:5.3f}  "
            f"{'yes' if kept[-1] else 'no':>4}  {seconds:7.1f}",
            flush=True,
        )
    print(
        f"worst conditional accuracy of the held-out accepted rows at least "
        f"{args.target}: {sum(kept)} of {len(kept)} seeds"
    )


if __name__ == "__main__":
    main()
