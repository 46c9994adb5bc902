"""One restart of a fit: training in a worker, reported to callbacks epoch by epoch."""

import numpy as np
from sklearn.utils import compute_class_weight

from sdm_sklearn._adaptor import train_adaptor


def train_restart(estimator, X, codes, split, seed, attributes, restart, context):
    """Train one adaptor; let the callbacks, if any, see every epoch.

    Parameters
    ----------
    estimator : SDMClassifier
        Holds the parameters and the callbacks; it is not changed.
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    codes : ndarray of shape (n_samples,)
        Class codes.
    split : tuple of ndarray
        Rows of the training and of the calibration half.
    seed : int
        Seed of initial weights and batches.
    attributes : dict
        Fitted attributes that are known before training: `classes_`, `reject_label_`.
    restart : int
        Number of the restart, its task id.
    context : CallbackContext
        Context of the fit.

    Returns
    -------
    result : TrainingResult
    """
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
                    [model], split, len(X), estimator.alpha, attributes["classes_"]
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
            y=attributes["classes_"][codes[split[0]]],
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
        *split,
        n_classes=n_classes,
        n_filters=estimator.n_filters,
        max_epochs=estimator.max_epochs,
        patience=estimator.patience,
        learning_rate=estimator.learning_rate,
        weight_averaging=estimator.weight_averaging,
        batch_size=estimator.batch_size,
        standardization=estimator.standardize,
        max_similarity=estimator.max_similarity,
        class_weight=class_weight,
        device=estimator.device,
        seed=seed,
        on_epoch=on_epoch,
    )
    if on_epoch is not None:
        context.call_on_fit_task_end(estimator=estimator, X=X, y=y)
    return result
