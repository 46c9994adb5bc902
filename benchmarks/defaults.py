"""Why the defaults are what they are: one parameter changed at a time.

Accepted share on held-out rows, mean over seeds; up to 3000 rows to fit on::

    python benchmarks/defaults.py --data DIR --seeds 5
"""

import argparse
import time

import numpy as np
from _common import fit_sdm, judge, load

SETS = ("intents", "clinc150-groups", "sentiment", "sentiment-smollm2")
ALPHAS = (0.8, 0.9)
VARIANTS = {
    "default": {},
    "n_restarts=1": {"n_restarts": 1},
    "n_filters=256": {"n_filters": 256},
    'standardize="global"': {"standardize": "global"},
    "standardize=False": {"standardize": False},
    "learning_rate=0.001": {"learning_rate": 1e-3},
    "batch_size=500": {"batch_size": 500},
    "weight_averaging=False": {"weight_averaging": False},
}


def load_set(name, data, seed):
    """Return a data set with at most 3000 rows to fit on and 4000 to test on."""
    task = load(name.removesuffix("-groups"), data, seed)
    y_fit, y_test = task.y_fit, task.y_test
    if name.endswith("-groups"):
        # Ten groups of 15 intents each: few classes, many rows.
        y_fit, y_test = y_fit // 15, y_test // 15
    return task._replace(
        X_fit=task.X_fit[:3000],
        y_fit=y_fit[:3000],
        X_test=task.X_test[:4000],
        y_test=y_test[:4000],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder of the larger sets")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    for name in SETS:
        print(f"\n{name}, {arguments.seeds} seeds")
        heads = "".join(f"{f'share {a:g}':>11}{f'below {a:g}':>11}" for a in ALPHAS)
        print(f"{'':24}{'CPU s':>8}{'accuracy':>10}{heads}")
        for variant, parameters in VARIANTS.items():
            rows = []
            for seed in range(arguments.seeds):
                task = load_set(name, arguments.data, seed)
                started = time.process_time()
                clf = fit_sdm(task, ALPHAS[0], seed, **parameters)
                row = [time.process_time() - started]
                row.append(clf.score(task.X_test, task.y_test))
                rows.append(row + judge(clf, task, ALPHAS))
            rows = np.array(rows)
            line = f"{variant:24}{np.median(rows[:, 0]):8.1f}{rows[:, 1].mean():10.3f}"
            for i, alpha in enumerate(ALPHAS):
                worst = rows[:, 3 + 2 * i]
                found = worst[~np.isnan(worst)]
                below = f"{(found < alpha).sum()} of {len(found)}"
                line += f"{rows[:, 2 + 2 * i].mean():11.3f}{below:>11}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
