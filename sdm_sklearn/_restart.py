"""The restarts of a fit: each in a worker, reported to callbacks epoch by epoch."""

import os
import threading
import time
from concurrent.futures import BrokenExecutor

import numpy as np
from joblib.parallel import get_active_backend
from sklearn.utils import compute_class_weight
from sklearn.utils.parallel import Parallel

from sdm_sklearn._adaptor import train_adaptor

_WATCHER = "sdm_sklearn: watches the process that fits"


def run_restarts(tasks, n_jobs):
    """Run the task of each restart, and name those that a dying worker leaves undone.

    Parameters
    ----------
    tasks : list of tuple
        Delayed calls of :func:`train_restart`, in the order of the restarts.
    n_jobs : int or None
        Number of tasks that run at the same time.

    Returns
    -------
    results : list of TrainingResult
        In the order of the restarts.

    Raises
    ------
    RuntimeError
        If a worker process dies.
    """
    # Some backends, as ray's, give all results at once.
    as_they_come = get_active_backend()[0].supports_return_generator
    parallel = Parallel(
        n_jobs=n_jobs, return_as="generator_unordered" if as_they_come else "list"
    )
    results = {}
    try:
        for restart, result in parallel(tasks):
            results[restart] = result
    except BrokenExecutor as error:
        undone = [str(i) for i in range(len(tasks)) if i not in results]
        raise RuntimeError(
            f"A worker process died during fit, with restart {', '.join(undone)} of "
            f"{len(tasks)} not done. Most often the machine has run out of memory and "
            f"ended it: lower n_jobs={n_jobs}, batch_size or n_filters. With "
            "checkpoint_dir set, a new fit goes on where this one stopped. The report "
            f"of joblib: {error}"
        ) from error
    return [results[restart] for restart in range(len(tasks))]


def end_with(process):
    """Let this worker end when the process that fits does, even if that is killed.

    joblib's workers would go on with all restarts that were begun or queued, and then
    wait for more.

    Parameters
    ----------
    process : int
        The process that fits. If it did not start this one, nothing happens.
    """
    if os.getppid() != process or _WATCHER in {t.name for t in threading.enumerate()}:
        return
    threading.Thread(
        target=_end_when_orphaned, args=(process,), name=_WATCHER, daemon=True
    ).start()


def _end_when_orphaned(parent, seconds=0.5):
    while os.getppid() == parent:
        time.sleep(seconds)
    os._exit(1)


def train_restart(
    estimator,
    X,
    codes,
    split,
    seed,
    attributes,
    restart,
    context,
    checkpoint=None,
    process=0,
):
    """Train one adaptor; let the callbacks, if any, see every epoch.

    Parameters
    ----------
    estimator : SDMClassifier
        Holds the parameters and the callbacks; it is not changed.
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    codes : ndarray of shape (n_samples,)
        Class codes.
    split : Split
        Rows of the training and of the calibration half, and the exemplars.
    seed : int
        Seed of initial weights and batches.
    attributes : dict
        Fitted attributes that are known before training: `classes_`, `reject_label_`.
    restart : int
        Number of the restart, its task id.
    context : CallbackContext
        Context of the fit.
    checkpoint : Checkpoint, default=None
        Where to keep every epoch, and to go on from.
    process : int, default=0
        The process that fits.

    Returns
    -------
    restart : int
    result : TrainingResult
    """
    end_with(process)
    on_epoch = None
    n_classes = len(attributes["classes_"])
    if hasattr(estimator, "_skl_callbacks"):
        y = attributes["classes_"][codes]
        context = context.subcontext(
            task_name="restart", task_id=restart, max_subtasks=estimator.max_epochs
        ).call_on_fit_task_begin(estimator=estimator, X=X, y=y)

        def on_epoch(record, adaptor):
            def fitted():
                model = estimator._build_model(adaptor, X, codes, split, n_classes)
                return attributes | estimator._model_attributes(
                    [model],
                    split.kept,
                    len(X),
                    estimator.alpha,
                    attributes["classes_"],
                )

            epoch = context.subcontext(task_name="epoch")
            epoch.call_on_fit_task_begin(estimator=estimator, X=X, y=y)
            return epoch.call_on_fit_task_end(
                estimator=estimator, X=X, y=y, reconstruction_attributes=fitted
            )

    class_weight = None
    if estimator.class_weight is not None:
        class_weight = compute_class_weight(
            estimator.class_weight,
            classes=attributes["classes_"],
            y=attributes["classes_"][codes[split.train]],
        )
        with np.errstate(over="ignore", under="ignore"):
            class_weight = class_weight.astype(np.float32)  # as training uses them
        if not (class_weight > 0).all() or not np.isfinite(class_weight).all():
            raise ValueError(
                "class_weight must be positive and finite for every class. Got "
                f"{estimator.class_weight!r}: leave out the rows of a class that is "
                "not to count."
            )
    result = train_adaptor(
        X,
        codes,
        split.train,
        split.calibration,
        n_classes=n_classes,
        n_filters=estimator.n_filters,
        max_epochs=estimator.max_epochs,
        patience=estimator.patience,
        learning_rate=estimator.learning_rate,
        weight_averaging=estimator.weight_averaging,
        batch_size=estimator.batch_size,
        standardization=estimator.standardize,
        max_similarity=estimator.max_similarity,
        neighbors=estimator.neighbors,
        exemplars=split.exemplars,
        class_weight=class_weight,
        device=estimator.device,
        seed=seed,
        on_epoch=on_epoch,
        checkpoint=checkpoint,
    )
    if on_epoch is not None:
        context.call_on_fit_task_end(estimator=estimator, X=X, y=y)
    return restart, result
