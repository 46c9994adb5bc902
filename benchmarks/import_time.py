"""Time to import the package against scikit-learn's base and NumPy.

Fresh interpreters, in turn; medians::

    python benchmarks/import_time.py
"""

import argparse
import statistics
import subprocess
import sys
import time

STATEMENTS = {
    "sklearn.base and numpy": "import sklearn.base, numpy",
    "sdm_sklearn": "import sdm_sklearn",
    "sdm_sklearn.SDMClassifier": "from sdm_sklearn import SDMClassifier",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    seconds = {name: [] for name in STATEMENTS}
    for repeat in range(arguments.repeats + 1):
        for name, statement in STATEMENTS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            if repeat:  # the first round fills the caches
                seconds[name].append(time.perf_counter() - started)
    base = statistics.median(seconds["sklearn.base and numpy"])
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:28}{median:7.3f} s {median / base:6.2f}")


if __name__ == "__main__":
    main()
