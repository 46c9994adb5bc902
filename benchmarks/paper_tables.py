"""The experiments of the SDM paper's tables, as far as public data allow.

Every task is fitted on the rows that are not test rows, with several seeds, and asked
about its test rows, rows from elsewhere, and texts with their words shuffled::

    python benchmarks/paper_tables.py --data DIR --results paper_tables.jsonl
    python benchmarks/paper_tables.py --data DIR --tasks sentiment --seeds 1

DIR holds the npz files named in `TASKS`. With `--results FILE` each seed is written to
that file when it ends, and one already in there is not run again; `--seeds 0` prints
what the file holds.

Every method without an adaptor rests on a logistic regression. "APS" and "RAPS" accept
the rows whose prediction set has one class: the regression is fitted on SDM's training
half and conformalised on its calibration half, by the lines below, as MAPIE refuses
both scores for two classes. "softmax(z')" and "softmax(d z')" take logits and Distance
of the one adaptor that SDM trained. "identity" replaces that adaptor by the
standardised embeddings and the logits of a logistic regression on the same training
half. "zero-shot" is the softmax of a language model's logits of No and Yes.
"""

import argparse
import math
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _common import Results, Task, decide, fit_sdm, fit_softmax, timed, with_rule
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn._linear import Adaptor
from sdm_sklearn._model import SDMModel
from sdm_sklearn.metrics import (
    class_conditional_accuracy_score,
    coverage_score,
    prediction_conditional_accuracy_score,
    selective_accuracy_score,
)

ALPHAS = (0.9, 0.95)
RAPS_PENALTY = 0.01
Q_MIN = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)
METHODS = (
    "zero-shot, no reject",
    "zero-shot >= alpha",
    "no reject",
    "softmax >= alpha",
    "temperature-scaled >= alpha",
    "APS singletons",
    "RAPS singletons",
    "softmax(z') >= alpha",
    "softmax(d z') >= alpha",
    "SDM >= alpha",
    "SDM region",
    "SDM region, per class",
    "SDM region, conservative",
    "SDM certified",
    "SDM certified, per class",
    "identity: SDM >= alpha",
    "identity: SDM region",
)
# Name -> (file to fit and test on, its name in the table, other test sets by name).
TASKS = {
    "sentiment": (
        "sentiment_minilm",
        "SENTIMENT",
        {
            "SENTIMENT_OOD": "sentiment_ood_minilm",
            "SENTIMENT shuffled": "sentiment_shuffled_minilm",
            "SENTIMENT_OOD shuffled": "sentiment_ood_shuffled_minilm",
        },
    ),
    "sentiment-smollm2": (
        "sentiment_smollm2",
        "SENTIMENT",
        {
            "SENTIMENT_OOD": "sentiment_ood_smollm2",
            "SENTIMENT shuffled": "sentiment_shuffled_smollm2",
            "SENTIMENT_OOD shuffled": "sentiment_ood_shuffled_smollm2",
        },
    ),
    "factcheck": (
        "factcheck_minilm",
        "FACTCHECK",
        {"FACTCHECK shuffled": "factcheck_shuffled_minilm"},
    ),
    "factcheck-smollm2": (
        "factcheck_smollm2",
        "FACTCHECK",
        {"FACTCHECK shuffled": "factcheck_shuffled_smollm2"},
    ),
    "civil": ("civil_comments_ambiguous_minilm", "Civil Comments", {}),
    "civil-smollm2": ("civil_yesno_smollm2", "Civil Comments", {}),
    "clinc150": ("clinc150_minilm", "CLINC150", {}),
}


class Rows(NamedTuple):
    """Rows of a test set; logits are those of a language model, if it gave any."""

    X: np.ndarray
    y: np.ndarray
    logits: np.ndarray | None

    def take(self, rows):
        return Rows(*(None if part is None else part[rows] for part in self))


def read(data, file):
    """Return the rows of a file, and which split and source they are of."""
    with np.load(Path(data) / f"{file}.npz") as archive:
        X = archive["X"] if "X" in archive.files else archive["H"]
        logits = archive.get("logits_no_yes")
        return Rows(X, archive["y"], logits), archive["split"], archive.get("source")


def load_task(name, data, seed):
    """Return X and y to fit on, and test sets by name."""
    file, title, elsewhere = TASKS[name]
    rows, split, _ = read(data, file)
    if (split == "test").all():  # a set without a split of its own
        fit = np.zeros(len(split), bool)
        fit[np.random.RandomState(seed).permutation(len(fit))[: 2 * len(fit) // 3]] = 1
        tests = {title: rows.take(~fit)}
    else:
        fit = np.isin(split, ["train", "calib"])
        tests = {title: rows.take(split == "test")}
    if "oos_test" in split:
        tests[f"{title} out of scope"] = rows.take(split == "oos_test")
    for other, other_file in elsewhere.items():
        other_rows, _, source = read(data, other_file)
        if source is not None:  # the paper's set are the tweets
            other_rows = other_rows.take(source == "semeval2017_4a")
        tests[other] = other_rows
    return rows.X[fit], rows.y[fit], tests


def fit_identity(X, y, train, calibration):
    """Return q, d and region on standardised embeddings, without a trained adaptor."""
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    pipeline.fit(X[train].astype(np.float32), y[train])
    scaler, logistic = pipeline[0], pipeline[1]
    weights, bias = logistic.coef_, logistic.intercept_
    if len(weights) == 1:  # the softmax of these is the sigmoid
        weights = np.vstack([-weights, weights]) / 2
        bias = np.concatenate([-bias, bias]) / 2
    n_features = X.shape[1]
    adaptor = Adaptor(
        scaler.mean_.astype(np.float64),
        scaler.scale_.astype(np.float64),
        np.eye(n_features),
        np.zeros(n_features),
        weights.astype(np.float64),
        bias.astype(np.float64),
    )
    split = (train, calibration)
    model = SDMModel.from_training(adaptor, X, y, split, len(bias), None)
    return pipeline, model


def conformal_scores(proba, random, penalty):
    """Return the randomised APS score of every class, with the penalty of RAPS.

    A class scores the probability of all classes before it and a random share of its
    own; RAPS adds `penalty` for each class before it.
    """
    order = np.argsort(-proba, axis=1)
    ordered = np.take_along_axis(proba, order, axis=1)
    scores = ordered.cumsum(axis=1) - random[:, None] * ordered
    scores += penalty * np.arange(proba.shape[1])
    out = np.empty_like(scores)
    np.put_along_axis(out, order, scores, axis=1)
    return out


def conformal_sets(model, X_calibration, y_calibration, X, alpha, penalty, seed):
    """Return the split-conformal prediction sets of X as a mask of classes."""
    random = np.random.RandomState(seed)
    scores, new = (
        conformal_scores(
            model.predict_proba(rows.astype(np.float32)).astype(np.float64),
            random.uniform(size=len(rows)),
            penalty,
        )
        for rows in (X_calibration, X)
    )
    own = np.sort(scores[np.arange(len(scores)), y_calibration])
    rank = math.ceil((len(own) + 1) * alpha)
    return new <= own[rank - 1]


def run_seed(name, data, seed, n_restarts):
    """Fit every method; return what the tables need of one seed."""
    X, y, tests = load_task(name, data, seed)
    task = Task(X, y, X_test=X[:0], y_test=y[:0], X_ood=X[:0])
    models = fit_softmax(task)
    sdm = fit_sdm(task, ALPHAS[0], seed, n_restarts=n_restarts)
    certified = fit_sdm(
        task, ALPHAS[0], seed, n_restarts=n_restarts, guarantee="certified"
    )
    halves = sdm.support_indices_, sdm.calibration_indices_
    logistic, identity = fit_identity(X, y, *halves)
    calibration = X[halves[1]], y[halves[1]]
    classes = sdm.classes_
    records, curve = [], []
    for title, rows in tests.items():
        measured = identity.measure(rows.X)
        for alpha in ALPHAS:
            decisions = decide(rows.X, alpha, models, sdm)
            for method, penalty in (("APS", 0.0), ("RAPS", RAPS_PENALTY)):
                chosen = conformal_sets(
                    logistic, *calibration, rows.X, alpha, penalty, seed
                )
                single = chosen.sum(axis=1) == 1
                decisions[f"{method} singletons"] = chosen.argmax(axis=1), single
            by_adaptor, answered = decide_by_adaptor(rows.X, alpha, sdm, certified)
            decisions |= by_adaptor
            region = identity.find_region(alpha)
            signals = identity.signals(measured, region, alpha)
            decisions["identity: SDM >= alpha"] = (
                signals.prediction,
                signals.probability >= alpha,
            )
            decisions["identity: SDM region"] = signals.prediction, signals.accepted
            if rows.logits is not None:
                zero_shot = softmax(rows.logits.astype(np.float64), axis=1)
                predictions = zero_shot.argmax(axis=1)
                confident = zero_shot.max(axis=1) >= alpha
                decisions["zero-shot, no reject"] = predictions, confident | True
                decisions["zero-shot >= alpha"] = predictions, confident
            for method, (predictions, accepted) in decisions.items():
                record = {"test": title, "alpha": alpha, "method": method}
                record |= judge(rows.y, predictions, accepted, classes)
                if method in answered and "class" in record:
                    drop_unanswered(record, answered[method])
                records.append(record)
        signals = sdm.signals(rows.X, alpha=ALPHAS[0])
        for q_min in Q_MIN:
            accepted = signals.rescaled_similarity >= q_min
            record = {"test": title, "q_min": q_min}
            curve.append(record | judge(rows.y, signals.prediction, accepted, classes))
    sizes = {title: len(rows.y) for title, rows in tests.items()}
    return {"n_fit": len(y), "sizes": sizes, "records": records, "curve": curve}


def decide_by_adaptor(X, alpha, sdm, certified):
    """Return name -> (predictions, accepted) of the ways to use a fitted adaptor.

    Also return name -> which classes are answered, for regions of single classes.
    """
    decisions, answered = {}, {}
    signals = sdm.signals(X, alpha=alpha)
    for method, logits in (
        ("softmax(z') >= alpha", signals.logits),
        ("softmax(d z') >= alpha", signals.distance[:, None] * signals.logits),
    ):
        confident = softmax(logits, axis=1).max(axis=1) >= alpha
        decisions[method] = signals.prediction, confident
    decisions["SDM region, conservative"] = signals.prediction, signals.lower_accepted
    for clf, method in ((sdm, "SDM region"), (certified, "SDM certified")):
        signals = clf.signals(X, alpha=alpha)
        decisions[method] = signals.prediction, signals.accepted
        by_class = with_rule(clf, region="per_class")
        signals = by_class.signals(X, alpha=alpha)
        decisions[f"{method}, per class"] = signals.prediction, signals.accepted
        answered[f"{method}, per class"] = by_class._find_regions(alpha)[1][0].answered
    return decisions, answered


def drop_unanswered(record, answered):
    """Blank the accuracies of classes of which nothing is promised."""
    for kind in ("class", "prediction"):
        accuracy = np.where(answered, record[kind], np.nan)
        record[kind] = accuracy.tolist()


def judge(y, predictions, accepted, classes):
    """Return share and accuracies of accepted rows; NaN where there is none."""
    known = np.isin(y, classes).all()
    arguments = (y, predictions, accepted)
    out = {"share": coverage_score(accepted)}
    if known:
        out["marginal"] = selective_accuracy_score(
            *arguments, replace_undefined_by=np.nan
        )
        for kind, score in (
            ("class", class_conditional_accuracy_score),
            ("prediction", prediction_conditional_accuracy_score),
        ):
            accuracy = score(*arguments, labels=classes, replace_undefined_by=np.nan)
            out[kind] = accuracy.tolist()
    return out


def average(values):
    """Return the mean of what is known as text."""
    values = np.array([value for value in values if not np.isnan(value)])
    return f"{values.mean():.3f}" if len(values) else "-"


def accuracies(rows):
    """Return the cells of conditional accuracies: both classes, or worst and mean."""
    cells = []
    for kind in ("class", "prediction"):
        per_class = np.array([row.get(kind, [np.nan] * 2) for row in rows])
        if per_class.shape[1] > 2:
            some = per_class[~np.isnan(per_class).all(axis=1)]
            per_class = np.column_stack([np.nanmin(some, 1), np.nanmean(some, 1)])
        cells += [average(column) for column in per_class.T] or ["-", "-"]
    return [*cells, average([row.get("marginal", np.nan) for row in rows])]


def count_below(rows, alpha):
    """Count the seeds with an accuracy below alpha among those that accept anything."""
    worst = [
        np.nanmin(row["class"] + row["prediction"])
        for row in rows
        if not np.isnan(row.get("class", []) + row.get("prediction", [])).all()
    ]
    return f"{sum(value < alpha for value in worst)} of {len(worst)}"


def print_task(name, seeds):
    """Print the tables of one task."""
    n_fit, sizes = seeds[0]["n_fit"], seeds[0]["sizes"]
    many = len(seeds[0]["records"][0]["class"]) > 2
    heads = ["worst y", "mean y", "worst ^y", "mean ^y"] if many else None
    heads = heads or ["y = 0", "y = 1", "^y = 0", "^y = 1"]
    print(f"\n{name}: {n_fit} rows to fit on, {len(seeds)} seeds")
    for title, n_test in sizes.items():
        for alpha in ALPHAS:
            print_heads(f"{title}, {n_test} rows, alpha = {alpha:g}", heads, "below")
            for method in METHODS:
                rows = select(seeds, "records", test=title, alpha=alpha, method=method)
                if rows:
                    print_line(method, rows, count_below(rows, alpha))
        print_heads(f"{title}: rows with q' of at least", heads, "")
        for q_min in Q_MIN:
            rows = select(seeds, "curve", test=title, q_min=q_min)
            if any(row["share"] > 0 for row in rows):
                print_line(f"{q_min}", rows, "")


def select(seeds, kind, **wanted):
    """Return the records, one per seed, with these values."""
    return [
        record
        for seed in seeds
        for record in seed[kind]
        if all(record[key] == value for key, value in wanted.items())
    ]


def print_heads(title, heads, last):
    print(f"\n{title}")
    print(f"{'':28}" + "".join(f"{head:>9}" for head in heads), end="")
    print(f"{'marginal':>10}{'share':>8}{last:>9}".rstrip())


def print_line(name, rows, last):
    *conditional, marginal = accuracies(rows)
    share = average([row["share"] for row in rows])
    print(f"{name:28}" + "".join(f"{cell:>9}" for cell in conditional), end="")
    print(f"{marginal:>10}{share:>8}{last:>9}".rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder of the sets")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--results", type=Path, help="file to keep finished seeds in")
    arguments = parser.parse_args()
    results = Results(arguments.results, ("task", "seed", "restarts"))
    for name in arguments.tasks:
        for seed in range(arguments.seeds):
            run = partial(run_seed, name, arguments.data, seed, arguments.restarts)
            with warnings.catch_warnings():
                # Accepting nothing is an outcome here.
                warnings.simplefilter("ignore")
                results.get(timed(run), name, seed, arguments.restarts)
        seeds = results.matching(task=name, restarts=arguments.restarts)
        if seeds:
            print_task(name, seeds)


if __name__ == "__main__":
    main()
