"""Time and memory from ten thousand to a million rows, on a memory-mapped float16 file.

Rows are drawn block by block into FOLDER, as `make_rows` of `_common.py` does from
CLINC150's sentences; DIR holds clinc150_minilm.npz. Half of the rows train and half
calibrate. Each fit runs in a process of its own, whose peak resident memory counts the
pages of the file that it has read::

    python benchmarks/million.py --data DIR --scratch FOLDER --results million.jsonl

Exemplars are `--support` training rows, or all of them up to `--full-up-to` rows. Times
are of a fit with a fixed number of epochs, of `predict_selective` on all rows, and of
`predict_selective` on single rows, the compilers warm.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from _common import Results, make_rows
from numpy.lib.format import open_memmap

from sdm_sklearn import NoRegionWarning, SDMClassifier, ThinEvidenceWarning

N_FEATURES = 384
BLOCK_ROWS = 50_000
N_SINGLE = 300


def write_rows(folder, data, n):
    """Write n rows and their classes, if they are not there."""
    paths = folder / f"rows{n}.npy", folder / f"classes{n}.npy"
    if paths[1].exists():
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    rows = open_memmap(paths[0], "w+", np.float16, (n, N_FEATURES))
    y = np.empty(n, dtype=np.int64)
    for start in range(0, n, BLOCK_ROWS):
        size = min(BLOCK_ROWS, n - start)
        block, y[start : start + size] = make_rows(data, size, seed=start)
        rows[start : start + size] = block
    rows.flush()
    np.save(paths[1], y)  # last: it tells that all is there
    return paths


def peak_gib():
    """Return the largest resident memory of this process so far, as Linux tells it.

    `ru_maxrss` would not do: it starts from what the parent had.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def measure(rows_file, classes_file, n, support, epochs):
    """Fit on the first n rows, predict, and return what it took."""
    X, y = np.load(rows_file, mmap_mode="r")[:n], np.load(classes_file)[:n]
    clf = SDMClassifier(
        0.9,
        n_restarts=1,
        max_epochs=epochs,
        patience=None,
        support_size=support,
        random_state=0,
    )
    warnings.simplefilter("ignore", NoRegionWarning)
    warnings.simplefilter("ignore", ThinEvidenceWarning)
    small = SDMClassifier(0.9, n_restarts=1, max_epochs=1, neighbors="pruned")
    small.fit(X[:2000], y[:2000]).predict_selective(X[:10])
    found = {"before": peak_gib()}
    started = time.perf_counter()
    clf.fit(X, y)
    found["fit"] = time.perf_counter() - started
    found["fit peak"] = peak_gib()
    found["exemplars"] = len(clf.support_indices_)
    single = []
    for row in np.linspace(0, n - 1, N_SINGLE).astype(int):
        started = time.perf_counter()
        clf.predict_selective(X[row : row + 1])
        single.append(time.perf_counter() - started)
    found["single"] = float(np.median(single))
    started = time.perf_counter()
    labels, accepted = clf.predict_selective(X, return_mask=True)
    found["throughput"] = n / (time.perf_counter() - started)
    found["predict peak"] = peak_gib()
    found["accepted"] = float(accepted.mean())
    return found


def measure_apart(paths, n, support, epochs):
    """Run `measure` in a process of its own."""
    arguments = [*map(str, paths), n, support, epochs]
    command = [sys.executable, __file__, "--measure", json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def show(records):
    """Print a table of the sizes with one support, and the growth of the fit."""
    print(
        f"{'rows':>10}{'exemplars':>11}{'fit s':>9}{'peak GiB':>10}{'rows/s':>10}"
        f"{'peak GiB':>10}{'one row ms':>12}"
    )
    for record in records:
        print(
            f"{record['rows']:10,}{record['exemplars']:11,}{record['fit']:9.1f}"
            f"{record['fit peak']:10.2f}{record['throughput']:10,.0f}"
            f"{record['predict peak']:10.2f}{1000 * record['single']:12.2f}"
        )
    if len(records) > 1:
        rows, seconds = (np.log([r[name] for r in records]) for name in ("rows", "fit"))
        power = np.polyfit(rows, seconds, 1)[0]
        print(f"fit time grows as rows to the power {power:.2f}")
        local = np.diff(seconds) / np.diff(rows)
        print("  from each size to the next", *(f"{power:.2f}" for power in local))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--data")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--results", type=Path)
    sizes = [10_000, 30_000, 100_000, 300_000, 1_000_000]
    parser.add_argument("--rows", type=int, nargs="+", default=sizes)
    parser.add_argument("--support", type=int, default=10_000)
    parser.add_argument("--full-up-to", type=int, default=300_000)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*json.loads(arguments.measure))))
        return
    paths = write_rows(arguments.scratch, arguments.data, max(sizes + arguments.rows))
    results = Results(arguments.results, ("rows", "support", "epochs"))
    for support in (arguments.support, None):
        if support is None:
            rows = [n for n in arguments.rows if n <= arguments.full_up_to]
            print("\nall training rows are exemplars")
        else:
            rows = arguments.rows
            print(f"support_size={support}")
        show(
            [
                results.get(
                    lambda key=(n, support, arguments.epochs): measure_apart(
                        paths, *key
                    ),
                    n,
                    support,
                    arguments.epochs,
                )
                for n in rows
            ]
        )


if __name__ == "__main__":
    main()
