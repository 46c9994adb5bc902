"""What does SelectiveThresholdCV cost beside the bare cross_val_predict it contains?

Both run on the same folds of the bundled intents, in turn; the ratio is that of the
medians of their CPU times, so that other work on the machine does not count.

    python benchmarks/threshold_cv_cost.py --repeats 5
"""

import argparse
import statistics
import time
import warnings

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from sdm_sklearn import SDMClassifier, SelectiveThresholdCV
from sdm_sklearn.datasets import load_intents


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    X, y = load_intents(return_X_y=True)
    X = X.astype(float)
    models = {
        "LogisticRegression": LogisticRegression(),
        "SDMClassifier": SDMClassifier(n_filters=16, max_epochs=20, random_state=0),
    }
    print("model               cross_val_predict  SelectiveThresholdCV  ratio")
    for name, model in models.items():
        bare, tool = [], []
        for _ in range(args.repeats):
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # folds without a region
                cross_val_predict(model, X, y, cv=5, method="predict_proba")
                bare.append(time.process_time() - start)
                start = time.process_time()
                SelectiveThresholdCV(model, alpha=0.9, cv=5, refit=False).fit(X, y)
                tool.append(time.process_time() - start)
        medians = statistics.median(bare), statistics.median(tool)
        ratio = medians[1] / medians[0]
        print(f"{name:18}  {medians[0]:15.2f} s  {medians[1]:18.2f} s  {ratio:5.2f}")


if __name__ == "__main__":
    main()
