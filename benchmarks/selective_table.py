"""Table of ways to reject, on the bundled and on larger sets, over several seeds.

Every seed draws its own split into rows to fit and to test on::

    python benchmarks/selective_table.py --data DIR --seeds 10 --alpha 0.9
    python benchmarks/selective_table.py --sets intents --seeds 10   # bundled data only

DIR holds the npz files named in `_common.SHARED`.
"""

import argparse
import time

from _common import SHARED, compare, load, print_table, summarize


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder of the larger sets")
    parser.add_argument("--sets", nargs="+", choices=["intents", *SHARED])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--alpha", type=float, default=0.9)
    arguments = parser.parse_args()
    sets = arguments.sets or ["intents", *(SHARED if arguments.data else [])]
    for name in sets:
        rows_of, started = {}, time.perf_counter()
        for seed in range(arguments.seeds):
            task = load(name, arguments.data, seed)
            outcomes, _ = compare(task, arguments.alpha, seed)
            for method, outcome in outcomes.items():
                rows_of.setdefault(method, []).append(summarize(task, outcome))
        print(
            f"\n{name}: {len(task.X_fit)} rows to fit on, {len(task.X_test)} to test "
            f"on, {len(task.X_ood)} OOD; alpha = {arguments.alpha:g}, "
            f"{arguments.seeds} seeds, {time.perf_counter() - started:.0f} s"
        )
        print_table(rows_of, arguments.alpha)


if __name__ == "__main__":
    main()
