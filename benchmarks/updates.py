"""What a model in operation costs: rows added, drift, saving, loading, checkpoints.

Synthetic embeddings (384 features, 10 overlapping classes, float32); half of the rows
are exemplars and half calibrate. Each figure is the median of `--repeats` runs on a
fresh copy of the model.

    python benchmarks/updates.py --rows 10000 30000 100000
"""

import argparse
import copy
import os
import pickle
import tempfile
import time
import warnings

import numpy as np

from sdm_sklearn import NoRegionWarning, SDMClassifier

N_FEATURES, N_CLASSES, N_ADDED, N_WINDOW = 384, 10, 1000, 500


def make_rows(n, seed):
    """Return embeddings and classes; a linear model errs on some percent of them."""
    random = np.random.RandomState(0)
    centers = random.standard_normal((N_CLASSES, N_FEATURES)) * 0.2
    random = np.random.RandomState(seed)
    y = random.randint(N_CLASSES, size=n)
    X = centers[y] + random.standard_normal((n, N_FEATURES))
    return X.astype(np.float32), y


def median_time(work, repeats):
    """Return the median wall time of a call in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measure(n, repeats, folder):
    """Return the seconds and megabytes of each operation at `n` rows."""
    X, y = make_rows(n, seed=1)
    X_new, y_new = make_rows(N_ADDED, seed=2)
    model = SDMClassifier(n_restarts=1, max_epochs=2, patience=None, random_state=0)
    found = {"fit, 2 epochs": median_time(lambda: model.fit(X, y), 1)}
    signals = model.signals(X_new)
    found["q > 0, share"] = float((signals.similarity > 0).mean())

    def add():
        copy.copy(model).add_to_support(X_new, y_new)

    found["add 1,000 rows"] = median_time(add, repeats)
    inner = model._models[0]
    coordinates, logits, _ = inner.calibration
    found["its search alone"] = median_time(
        lambda: inner.neighbors.query(coordinates, logits.argmax(axis=1)), repeats
    )
    window = X_new[:N_WINDOW]
    found["signals of 500 rows"] = median_time(lambda: model.signals(window), repeats)
    found["drift of 500 rows"] = median_time(lambda: model.drift(window), repeats)
    path = os.path.join(folder, "model.npz")
    found["save"] = median_time(lambda: model.save(path), repeats)
    found["load"] = median_time(lambda: SDMClassifier.load(path), repeats)
    found["file, MB"] = os.path.getsize(path) / 1e6
    found["pickle, MB"] = len(pickle.dumps(model)) / 1e6
    return found


def checkpoint_cost(repeats, folder):
    """Return seconds of a fit without and with checkpoints, in turn, and its epochs."""
    X, y = make_rows(3000, seed=1)
    plain = SDMClassifier(n_restarts=1, patience=None, max_epochs=30, random_state=0)
    kept = copy.copy(plain).set_params(checkpoint_dir=folder)
    times = [
        [median_time(lambda model=model: model.fit(X, y), 1) for model in (plain, kept)]
        for _ in range(repeats)
    ]
    return [float(value) for value in np.median(times, axis=0)], 30


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 30_000])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore", NoRegionWarning)
    with tempfile.TemporaryDirectory() as folder:
        columns = {n: measure(n, args.repeats, folder) for n in args.rows}
        names = next(iter(columns.values()))
        print(f"{'seconds, if not said':24}", *(f"{n:>10,}" for n in columns))
        for name in names:
            values = (f"{column[name]:10.3f}" for column in columns.values())
            print(f"{name:24}", *values)
        (plain, kept), n_epochs = checkpoint_cost(args.repeats, folder)
    print(
        f"\nfit of 3,000 rows, {n_epochs} epochs: {plain:.2f} s, with checkpoints "
        f"{kept:.2f} s: {(kept - plain) / n_epochs * 1000:.1f} ms an epoch"
    )


if __name__ == "__main__":
    main()
