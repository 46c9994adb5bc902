import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import pytest
from sklearn.callback import ScoringMonitor
from sklearn.utils.parallel import delayed

from sdm_sklearn import SDMClassifier
from sdm_sklearn._restart import run_restarts

ROOT = Path(__file__).parent.parent


def work(restart, pause=0.0, dies=False):
    time.sleep(pause)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return restart, restart**2


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_results_stand_in_the_order_of_the_restarts(n_jobs):
    tasks = [delayed(work)(i, pause=0.2 - 0.1 * i) for i in range(3)]
    assert run_restarts(tasks, n_jobs) == [0, 1, 4]


def test_backends_that_give_all_results_at_once():
    tasks = [delayed(work)(i) for i in range(3)]
    with joblib.parallel_config("multiprocessing"):
        assert run_restarts(tasks, 1) == [0, 1, 4]


def test_a_worker_that_dies_is_named():
    tasks = [delayed(work)(0), delayed(work)(1, pause=2.0, dies=True)]
    with pytest.raises(RuntimeError) as caught:
        run_restarts(tasks, 2)
    message = str(caught.value)
    assert "with restart 1 of 2 not done" in message
    assert "lower n_jobs=2, batch_size or n_filters" in message
    assert "SIGKILL" in message
    # The next fit has new workers.
    assert run_restarts([delayed(work)(i) for i in range(2)], 2) == [0, 1]


def test_other_errors_pass():
    with pytest.raises(TypeError, match="unsupported operand"):
        run_restarts([delayed(work)("a")], None)


class Slow(ScoringMonitor):
    """Leaves its process id in a folder, and makes an epoch last; or ends it all."""

    def __init__(self, folder, dies=False):
        super().__init__(scoring=lambda estimator, X, y: 0.0)
        self.folder = folder
        self.dies = dies

    def on_fit_task_end(self, estimator, context, **kwargs):
        (Path(self.folder) / str(os.getpid())).touch()
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)


@pytest.mark.slow
def test_a_fit_whose_worker_dies(blobs, tmp_path):
    clf = SDMClassifier(n_restarts=2, n_jobs=2, random_state=0)
    with pytest.raises(RuntimeError, match="restart 0, 1 of 2 not done"):
        clf.set_callbacks(Slow(tmp_path, dies=True)).fit(*blobs)
    assert not hasattr(clf, "classes_")


SCRIPT = """
import sys
from sdm_sklearn import SDMClassifier
from tests.conftest import make_blobs
from tests.test_restart import Slow

clf = SDMClassifier(n_restarts=4, n_jobs=2, patience=None, random_state=0)
clf.set_callbacks(Slow(sys.argv[1])).fit(*make_blobs())
"""


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("target", ["parent", "group", "killed parent"])
def test_an_interrupt_leaves_no_process_behind(target, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: len(os.listdir(tmp_path)) == 2)
    workers = [int(name) for name in os.listdir(tmp_path)]
    assert process.pid not in workers
    assert all(map(running, workers))
    if target == "parent":
        os.kill(process.pid, signal.SIGINT)
    elif target == "group":  # as Ctrl-C in a terminal
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert target == "killed parent" or "KeyboardInterrupt" in errors
    # Nothing of the whole session is left, neither workers nor their helpers.
    wait_for(lambda: not any(map(running, workers)))
    wait_for(lambda: not any(map(running, members(process.pid))))


def members(session):
    """Return the processes of a session."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except (OSError, IndexError):
            continue
        if path.name.isdigit() and int(fields[3]) == session:
            found.append(int(path.name))
    return found
