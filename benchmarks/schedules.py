"""The default training schedule against the published one: accepted share and CPU time.

Both run on the same rows of the movie-review sentiment set, 1500 to train and 1500 to
calibrate on, one restart each, in turn::

    python benchmarks/schedules.py --data DIR --seeds 10
"""

import argparse
import time
from pathlib import Path

import numpy as np
from _common import PUBLISHED_SCHEDULE, Task, fit_sdm, judge

ALPHAS = (0.8, 0.9, 0.95)


def load_sentiment(data, name, seed):
    with np.load(Path(data) / f"{name}.npz") as archive:
        X, y = archive["X"], archive["y"]
    order = np.random.RandomState(seed).permutation(len(X))
    fit, test = order[:3000], order[3000:]
    return Task(X[fit], y[fit], X[test], y[test], X[:0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--set", default="sentiment_minilm")
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    schedules = {"default": {}, "published": PUBLISHED_SCHEDULE}
    seconds = {name: [] for name in schedules}
    results = {name: [] for name in schedules}
    # torch and BLAS start up before the clock does.
    fit_sdm(load_sentiment(arguments.data, arguments.set, 0), 0.9, 0, max_epochs=1)
    for seed in range(arguments.seeds):
        task = load_sentiment(arguments.data, arguments.set, seed)
        for name, schedule in schedules.items():
            started = time.process_time()
            clf = fit_sdm(task, 0.9, seed, n_restarts=1, **schedule)
            seconds[name].append(time.process_time() - started)
            accuracy = clf.score(task.X_test, task.y_test)
            results[name].append([accuracy, *judge(clf, task, ALPHAS)])
    print(f"{arguments.set}, {arguments.seeds} seeds, 1500 + 1500 rows, one restart")
    heads = "".join(
        f"{f'share {a:g}':>12}{f'worst {a:g}':>12}{'below':>7}" for a in ALPHAS
    )
    print(f"{'schedule':12}{'CPU s':>9}{'accuracy':>10}{heads}")
    for name, rows in results.items():
        rows = np.array(rows)
        line = f"{name:12}{np.median(seconds[name]):9.2f}{rows[:, 0].mean():10.3f}"
        for i, alpha in enumerate(ALPHAS):
            worst = rows[:, 2 + 2 * i]
            found = worst[~np.isnan(worst)]
            mean = f"{found.mean():.3f}" if len(found) else "-"
            line += f"{rows[:, 1 + 2 * i].mean():12.3f}{mean:>12}"
            line += f"{f'{(found < alpha).sum()}/{len(found)}':>7}"
        print(line)
    ratios = np.array(seconds["published"]) / np.array(seconds["default"])
    print(f"CPU time published / default: median {np.median(ratios):.1f}")


if __name__ == "__main__":
    main()
