"""What the documentation shows is what happens."""

import doctest
import re
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import make_blobs

from sdm_sklearn import SDMClassifier

ROOT = Path(__file__).parent.parent


def test_getting_started():
    page = ROOT / "docs" / "getting_started.rst"
    failed, attempted = doctest.testfile(str(page), module_relative=False)
    assert attempted > 10
    assert failed == 0


def test_recipes_for_streams():
    page = (ROOT / "docs" / "user_guide" / "shift.rst").read_text()
    blocks = re.findall(r"code-block:: python\n\n((?:    .*\n|\n)+)", page)
    look, same, shifted, strange = (textwrap.dedent(block) for block in blocks)
    X, y = make_blobs(1500, centers=3, n_features=8, cluster_std=2, random_state=0)
    y = np.array(["first", "second", "third"])[y]
    names = {
        "np": np,
        "SDMClassifier": partial(SDMClassifier, max_epochs=20, n_restarts=1),
        "X": X[:900],
        "y": y[:900],
        "reference": X[900:1200],
        "X_new": X[1200:],
        "X_shifted": X[900:1200] + 1,
        "y_shifted": y[900:1200],
        "X_strange": X[900:1200] + 8,
    }
    exec(look + same, names)
    assert (names["labels"] == y[1200:]).mean() > 0.5
    assert names["answer"](names["clf"], X[1200:] + 1, names["reference"]) is None
    exec(shifted, names)
    assert len(names["clf"].calibration_indices_) == 300
    before = SDMClassifier(alpha=0.8, max_epochs=20, n_restarts=1, random_state=0)
    before.fit(names["X"], names["y"])
    exec(strange, names)
    near = names["X_strange"] + 0.01
    q = names["clf"].signals(near).similarity
    assert q.mean() < before.signals(near).similarity.mean()


def test_quickstart_of_the_readme(capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    exec(compile(code, "README.md", "exec"), {})
    shown = re.findall(r"# (\S.*)$", code, re.M)[-2:]
    for line, promised in zip(capsys.readouterr().out.splitlines(), shown, strict=True):
        numbers = [round(float(x), 3) for x in re.findall(r"[\d.]+", line)]
        assert numbers == [float(x) for x in re.findall(r"[\d.]+", promised)]
        assert line.startswith("[False]") == promised.startswith("[False]")
