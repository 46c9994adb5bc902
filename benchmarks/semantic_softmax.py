"""Measure SemanticSoftmaxCalibrator on real hidden states.

    python benchmarks/semantic_softmax.py quality --data DIR
    python benchmarks/semantic_softmax.py labels --data DIR
    python benchmarks/semantic_softmax.py grid --data DIR
    python benchmarks/semantic_softmax.py speed --data DIR

`quality` compares zero-shot rules, with and without prior step and scaling, over five
random halves; `labels` varies the number of labelled rows; `grid` varies the threshold
and K as in the paper's appendix; `speed` times all routes in one interleaved run.

DIR holds `smollm2_E_q8.npz` (output embeddings in blocks of 8 bits),
`smollm2_vocab.json` (token texts) and, for each prompt, `<prompt>_smollm2.npz` with
last hidden states H, those of content-free inputs H_cf, and labels y.
"""

import argparse
import json
import time
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
from scipy.special import softmax
from sklearn.base import clone
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import brier_score_loss, f1_score, roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sdm_sklearn import (
    OutputEmbeddings,
    SemanticSoftmaxCalibrator,
    find_label_tokens,
)
from sdm_sklearn.metrics import (
    aurc,
    classwise_calibration_error,
    expected_calibration_error,
)

EMOTIONS = ["anger", "disgust", "fear", "joy", "sadness", "surprise", "neutral"]
PROMPTS = {
    "goemotions_list": EMOTIONS,
    "goemotions_open": EMOTIONS,
    "civil_yesno": ["no", "yes"],
    "civil_open": ["safe", "toxic"],
}
# Table 1 of arXiv 2605.09739: ECE, Brier, AUROC, macro-F1.
PUBLISHED = """\
Qwen-3-1.7B  GoEmotions      constrained  .574  .842  .712  .229
Qwen-3-1.7B  GoEmotions      semantic     .069  .591  .763  .267
Qwen-3-1.7B  Civil Comments  constrained  .482  .571  .784  .412
Qwen-3-1.7B  Civil Comments  semantic     .108  .517  .882  .451
Phi-4-mini   GoEmotions      constrained  .421  .795  .744  .236
Phi-4-mini   GoEmotions      semantic     .065  .588  .756  .253
Phi-4-mini   Civil Comments  constrained  .395  .542  .812  .421
Phi-4-mini   Civil Comments  semantic     .092  .498  .835  .451"""
# Its appendix: ECE by K and threshold.
PUBLISHED_GRID = """\
K         .75    .80    .85
  50    .1497  .1145  .1840
 100    .1514  .1145  .1923
 300    .1491  .1144  .1987
 600    .1498  .1130  .1986
1000    .1499  .1162  .1993"""
COLUMNS = ["ECE", "cwECE", "Brier", "NLL", "AUROC", "F1", "AURC"]


def load_model(folder):
    with np.load(folder / "smollm2_E_q8.npz") as archive:
        blocks, scales = archive["q"], archive["scale"].astype(np.float32)
    matrix = blocks.reshape(len(blocks), scales.shape[1], -1) * scales[:, :, None]
    vocabulary = json.loads((folder / "smollm2_vocab.json").read_text())["decoded"]
    matrix = matrix.reshape(len(blocks), -1)
    return OutputEmbeddings(matrix, exclude=[0, 1, 2]), matrix, vocabulary


def load_prompt(folder, prompt, vocabulary):
    with np.load(folder / f"{prompt}_smollm2.npz") as archive:
        states = {key: archive[key].astype(np.float32) for key in ("H", "H_cf")}
        y = archive["y"]
    words = PROMPTS[prompt]
    tokens = find_label_tokens(dict(enumerate(words)), vocabulary)
    return states["H"], states["H_cf"], y, tokens


def measure(y, proba):
    predicted = proba.argmax(axis=1)
    confidence = proba.max(axis=1)
    labels = np.arange(proba.shape[1])
    score = proba[:, 1] if len(labels) == 2 else proba
    return [
        expected_calibration_error(predicted == y, confidence, n_bins=15),
        classwise_calibration_error(y, proba, labels=labels, n_bins=15),
        brier_score_loss(y, proba, labels=labels, scale_by_half=False),
        -np.log(np.maximum(proba[np.arange(len(y)), y], 1e-15)).mean(),
        roc_auc_score(y, score, multi_class="ovr"),
        f1_score(y, predicted, average="macro"),
        aurc(y, predicted, confidence),
    ]


def kernels(tokens, output):
    constrained = SemanticSoftmaxCalibrator(tokens, output, similarity_threshold=1.0)
    return {
        "constrained": constrained,
        "published": SemanticSoftmaxCalibrator.published(tokens, output),
        "default": SemanticSoftmaxCalibrator(tokens, output),
    }


def logistic():
    model = LogisticRegressionCV(
        Cs=np.logspace(-5, 0, 6),
        cv=3,
        scoring="neg_log_loss",
        l1_ratios=(0,),
        use_legacy_attributes=False,
        max_iter=2000,
    )
    return make_pipeline(StandardScaler(), model)


def contextual(calibrator, proba, content_free):
    free = calibrator.predict_proba(content_free).mean(axis=0)
    return proba / free / (proba / free).sum(axis=1, keepdims=True)


def halves(y, n_splits=5):
    splitter = StratifiedShuffleSplit(n_splits, test_size=0.5, random_state=0)
    return splitter.split(y, y)


def quality(folder):
    output, _, vocabulary = load_model(folder)
    for prompt in PROMPTS:
        H, content_free, y, tokens = load_prompt(folder, prompt, vocabulary)
        table, gains = {}, []
        for fit, test in halves(y):
            share = np.bincount(y[fit]) / len(fit)
            prior = dict(enumerate(share.tolist()))
            rows = {"class shares alone": np.tile(share, (len(test), 1))}
            for name, base in kernels(tokens, output).items():
                plain = clone(base).fit(H[fit])
                rows[name] = plain.predict_proba(H[test])
                rows[f"{name}, contextual"] = contextual(
                    plain, rows[name], content_free
                )
                for tag, given in (("uniform", "uniform"), ("shares", prior)):
                    cal = clone(base).set_params(prior=given).fit(H[fit])
                    rows[f"{name}, prior {tag}"] = cal.predict_proba(H[test])
                scalings = {"temperature": None, "bcts": prior}
                for scaling, given in scalings.items():
                    cal = clone(base).set_params(prior=given, calibration=scaling)
                    proba = cal.fit(H[fit], y[fit]).predict_proba(H[test])
                    rows[f"{name}, {scaling}"] = proba
            rows["logistic regression"] = (
                logistic().fit(H[fit], y[fit]).predict_proba(H[test])
            )
            for name, proba in rows.items():
                table.setdefault(name, []).append(measure(y[test], proba))
            pair = [measure(y[test], rows[n])[4] for n in ("constrained", "default")]
            gains.append(pair[1] - pair[0])
        default = SemanticSoftmaxCalibrator(tokens, output).fit(H)
        right = default.predict(H) == y
        mass = default.captured_mass(H)
        print(f"\n{prompt}: {len(y)} rows, {np.bincount(y).tolist()} per class")
        print(f"{len(default.required_token_ids_)} tokens vote; captured mass "
              f"{np.median(mass):.3f} in the median; as an error detector its AUROC is "
              f"{roc_auc_score(right, mass):.2f}")  # fmt: skip
        print(f"AUROC of default less constrained, by split: {np.round(gains, 3)}")
        print(f"{'':28s}" + "".join(f"{c:>8s}" for c in COLUMNS))
        for name, values in table.items():
            mean = np.mean(values, axis=0)
            print(f"{name:28s}" + "".join(f"{value:8.3f}" for value in mean))
    print("\nPublished (ECE, Brier, AUROC, macro-F1)")
    print(PUBLISHED)


def labels(folder):
    output, _, vocabulary = load_model(folder)
    sizes = [10, 25, 50, 100, 200]
    for prompt in PROMPTS:
        H, _, y, tokens = load_prompt(folder, prompt, vocabulary)
        losses = {}
        for fit, test in halves(y, 10):
            share = np.bincount(y[fit]) / len(fit)
            losses.setdefault("class shares alone", []).append(
                [-np.log(share[y[test]]).mean()] * len(sizes)
            )
            for name in ("temperature", "bcts", "bcts after prior", "logistic"):
                row = []
                for n in sizes:
                    few = first_rows(y, fit, n)
                    if name == "logistic":
                        row.append(logistic_loss(H, y, few, test))
                        continue
                    cal = SemanticSoftmaxCalibrator(
                        tokens, output, calibration=name.split()[0]
                    )
                    if "prior" in name:
                        # The unlabelled rows and the smoothed shares of the labelled.
                        counts = np.bincount(y[few], minlength=len(share)) + 1
                        prior = dict(enumerate((counts / counts.sum()).tolist()))
                        step = clone(cal).set_params(prior=prior, calibration=None)
                        step.fit(H[fit])
                        logits = [
                            step.predict_log_proba(H[rows]) for rows in (few, test)
                        ]
                        cal = SemanticSoftmaxCalibrator(
                            list(range(len(share))), input="logits"
                        ).fit(logits[0], y[few])
                        proba = cal.predict_log_proba(logits[1])
                    else:
                        proba = cal.fit(H[few], y[few]).predict_log_proba(H[test])
                    row.append(-proba[np.arange(len(test)), y[test]].mean())
                losses.setdefault(name, []).append(row)
        print(f"\n{prompt}: NLL by number of labelled rows")
        print(f"{'':20s}" + "".join(f"{n:8d}" for n in sizes))
        for name, values in losses.items():
            mean = np.mean(values, axis=0)
            print(f"{name:20s}" + "".join(f"{value:8.3f}" for value in mean))


def first_rows(y, fit, n):
    """The first n fit rows, with two of each class among them."""
    rows = list(fit[:n])
    for label in np.unique(y):
        have = [r for r in rows if y[r] == label]
        spare = [r for r in fit if y[r] == label and r not in rows]
        rows += spare[: max(0, 2 - len(have))]
    return np.array(rows)


def logistic_loss(H, y, few, test):
    model = logistic()
    smallest = np.bincount(y[few]).min()
    model[-1].set_params(cv=int(min(3, smallest)))
    proba = model.fit(H[few], y[few]).predict_proba(H[test])
    return -np.log(np.maximum(proba[np.arange(len(test)), y[test]], 1e-15)).mean()


def grid(folder):
    output, matrix, vocabulary = load_model(folder)
    runs = [
        ("published rule", "raw", (0.75, 0.8, 0.85), (50, 100, 300, 600, 1000)),
        ("default kernel", "whitened", (0.1, 0.2, 0.3, 0.4), (50, 1000, None)),
        ("centred kernel", "centered", (0.2, 0.4, 0.6), (50, 1000, None)),
    ]
    for prompt in PROMPTS:
        H, _, y, tokens = load_prompt(folder, prompt, vocabulary)
        logits = H @ matrix.T
        print(f"\n{prompt}: ECE, NLL and AUROC, zero-shot")
        for name, geometry, thresholds, sizes in runs:
            print(f"{name:20s}" + "".join(f"{t:>24.2f}" for t in thresholds))
            make = SemanticSoftmaxCalibrator
            make = make.published if geometry == "raw" else make
            for top_k in sizes:
                line = f"{f'K={top_k}':>20s}"
                for threshold in thresholds:
                    cal = make(tokens, output, input="logits", top_k=top_k)
                    cal.set_params(geometry=geometry, similarity_threshold=threshold)
                    values = measure(y, cal.fit(logits).predict_proba(logits))
                    line += f"{values[0]:10.3f} {values[3]:6.3f} {values[4]:6.3f}"
                print(line)
        published = SemanticSoftmaxCalibrator.published(tokens, output, input="logits")
        log_proba = published.fit(logits).predict_log_proba(logits)
        zeros = (log_proba < -700).any(axis=1).mean()
        single = {name: ids[:1] for name, ids in tokens.items()}
        for kind, ids in (("one token", single), ("all forms", tokens)):
            cal = published.set_params(label_token_ids=ids, vocabulary=vocabulary)
            tables = cal.fit(logits).neighbors_.values()
            found = [text for table in tables for text in table.tokens]
            print(f"published rule, labels of {kind}: neighbours {found}")
        print(f"rows in which K=50 hears some labels and not others: {zeros:.2f}")
    print("\nPublished ECE by K and threshold")
    print(PUBLISHED_GRID)


def top50_route(dtype, matrix, weight):
    """The published route: all logits in blocks, softmax, the 50 best, their votes."""
    matrix = matrix.astype(dtype)

    def run(H):
        out = []
        for start in range(0, len(H), 128):
            proba = softmax(H[start : start + 128].astype(dtype) @ matrix.T, axis=1)
            best = np.argpartition(proba, -50, axis=1)[:, -50:]
            votes = np.take_along_axis(proba, best, axis=1)[:, :, None] * weight[best]
            out.append(votes.sum(axis=1))
        return np.concatenate(out)

    return run


def bare_top50(matrix):
    """As little of it as can be: all logits in float32, the 50 best."""

    def run(H):
        for start in range(0, len(H), 128):
            logits = H[start : start + 128] @ matrix.T
            best = np.argpartition(logits, -50, axis=1)[:, -50:]
            np.take_along_axis(logits, best, axis=1)

    return run


def speed(folder):
    output, matrix, vocabulary = load_model(folder)
    H, _, _, _ = load_prompt(folder, "goemotions_list", vocabulary)
    X = np.tile(H, (10, 1))
    few = X[:256]
    ids = {w: vocabulary.index(f" {w}") for w in EMOTIONS}
    label_ids = list(ids.values())
    start = time.perf_counter()
    default = SemanticSoftmaxCalibrator(ids, output).fit(X[:2])
    print(f"first fit, with whitening: {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    SemanticSoftmaxCalibrator(ids, output).fit(X[:2])
    print(
        f"next fit with the same OutputEmbeddings: {time.perf_counter() - start:.2f} s"
    )
    narrow = SemanticSoftmaxCalibrator(ids, output, similarity_threshold=0.25)
    deaf = SemanticSoftmaxCalibrator(ids, output, similarity_threshold=1.0)
    truncated = SemanticSoftmaxCalibrator(ids, output, top_k=50)
    for cal in (narrow, deaf, truncated):
        cal.fit(X[:2])
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    weight = np.maximum(unit @ unit[label_ids].T - 0.8, 0)
    head = matrix[label_ids].T
    wide = head.astype(np.float64)
    # name -> function, rows
    routes = {
        f"default ({len(default.required_token_ids_)} tokens)": (
            default.predict_proba,
            X,
        ),
        f"threshold .25 ({len(narrow.required_token_ids_)} tokens)": (
            narrow.predict_proba,
            X,
        ),
        "constrained, this class": (deaf.predict_proba, X),
        "constrained, NumPy float64": (
            lambda X: softmax(X.astype(np.float64) @ wide, axis=1),
            X,
        ),
        "constrained, NumPy float32": (lambda X: softmax(X @ head, axis=1), X),
        "top_k=50, this class": (truncated.predict_proba, few),
        "published route, float64": (top50_route(np.float64, matrix, weight), few),
        "published route, float32": (top50_route(np.float32, matrix, weight), few),
        "bare logits and top 50, float32": (bare_top50(matrix), few),
    }
    times = {name: [] for name in routes}
    for _ in range(7):
        for name, (run, rows) in routes.items():
            start = time.perf_counter()
            run(rows)
            times[name].append((time.perf_counter() - start) * len(X) / len(rows))
    base = np.median(times[next(iter(times))])
    print(f"\n{len(X)} rows, V = {len(matrix)}, D = {matrix.shape[1]}, 7 labels")
    print(f"{'':34s}{'ms':>10s}{'default is':>16s}")
    for name, values in times.items():
        middle = np.median(values)
        ratio = middle / base
        word = f"{ratio:.1f} x faster" if ratio >= 1 else f"{1 / ratio:.1f} x slower"
        print(f"{name:34s}{1e3 * middle:10.1f}{word:>16s}")
    tracemalloc.start()
    default.predict_proba(X)
    print(f"extra memory: {tracemalloc.get_traced_memory()[1] / 1e6:.1f} MB")
    tracemalloc.stop()
    start = time.perf_counter()
    for _ in range(100):
        clone(SemanticSoftmaxCalibrator(ids, matrix))
    each = (time.perf_counter() - start) / 100
    print(f"clone with a matrix of {matrix.nbytes / 1e6:.0f} MB: {1e3 * each:.3f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = {"quality": quality, "labels": labels, "grid": grid, "speed": speed}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        # Baselines without neighbours and small labelled sets warn, as they should.
        warnings.simplefilter("ignore", UserWarning)
        parts[arguments.part](arguments.data)


if __name__ == "__main__":
    main()
