"""Write a small model in the current format, and what it says of some rows.

Run once for each version of the format, from the root of the repository, by
``python -m tests.data.models.write``. The files of earlier versions are never written
again: they are what later versions must read.
"""

from pathlib import Path

import numpy as np
import pandas

from sdm_sklearn import SDMClassifier
from sdm_sklearn._container import write_container
from sdm_sklearn._persistence import FORMAT_VERSION
from tests.conftest import make_blobs

FOLDER = Path(__file__).parent


def main():
    X, codes = make_blobs(400, n_features=6, n_classes=3, separation=8.0)
    y = np.array(["ant", "mole", "zebra"])[codes]
    X = pandas.DataFrame(X, columns=list("abcdef"))
    clf = SDMClassifier(
        alpha=0.7,
        n_filters=8,
        n_restarts=2,
        ensemble=True,
        max_epochs=30,
        random_state=0,
    ).fit(X[:340], y[:340])
    clf.add_to_support(X[340:350], [*y[340:345], *["stranger"] * 5])
    clf.save(FOLDER / f"format_{FORMAT_VERSION}.npz")
    rows = pandas.concat([X[330:], 1e3 * X[390:]])
    expected = dict(clf.signals(rows))
    expected["X"] = rows.to_numpy()
    expected["predict_selective"] = clf.predict_selective(rows)
    write_container(FOLDER / f"format_{FORMAT_VERSION}_expected.npz", {}, expected)


if __name__ == "__main__":
    main()
