"""Table of ways to reject, on the bundled and on larger sets, over several seeds.

Every seed draws its own split into rows to fit and to test on::

    python benchmarks/selective_table.py --data DIR --seeds 10 --alpha 0.9
    python benchmarks/selective_table.py --sets intents --seeds 10   # bundled data only

DIR holds the npz files named in `_common.SHARED`. With `--results FILE` each seed is
written to that file when it ends, and one already in there is not run again.
"""

import argparse
from functools import partial
from pathlib import Path

from _common import SHARED, Results, compare, load, print_table, summarize


def run_seed(name, data, seed, alpha):
    """Return what the table needs of one seed."""
    task = load(name, data, seed)
    outcomes, clf = compare(task, alpha, seed)
    return {
        "sizes": [len(task.X_fit), len(task.X_test), len(task.X_ood)],
        "attainable": clf.alpha_found_,
        "rows": {
            method: summarize(task, outcome) for method, outcome in outcomes.items()
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder of the larger sets")
    parser.add_argument("--sets", nargs="+", choices=["intents", *SHARED])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--alpha", type=float, default=0.9)
    parser.add_argument("--results", type=Path, help="file to keep finished seeds in")
    arguments = parser.parse_args()
    results = Results(arguments.results, ("set", "seed", "alpha"))
    for name in arguments.sets or ["intents", *(SHARED if arguments.data else [])]:
        records = []
        for seed in range(arguments.seeds):
            run = partial(run_seed, name, arguments.data, seed, arguments.alpha)
            records.append(results.get(run, name, seed, arguments.alpha))
        n_fit, n_test, n_ood = records[0]["sizes"]
        print(
            f"\n{name}: {n_fit} rows to fit on, {n_test} to test on, {n_ood} OOD; "
            f"alpha = {arguments.alpha:g}, {arguments.seeds} seeds"
        )
        methods = records[0]["rows"]
        print_table(
            {
                method: [record["rows"][method] for record in records]
                for method in methods
            },
            arguments.alpha,
        )


if __name__ == "__main__":
    main()
