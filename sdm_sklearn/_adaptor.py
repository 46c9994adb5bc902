"""Training of the exemplar adaptor. The only estimator module that imports torch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from sdm_sklearn._blocks import explained_memory_error
from sdm_sklearn._ecdf import evaluate_distance, fit_class_ecdf
from sdm_sklearn._linear import Adaptor, fit_standardization, standardize
from sdm_sklearn._neighbors import cap_similarity
from sdm_sklearn._search import NNDescentGraph, make_search
from sdm_sklearn._training_state import TrainingState, rank_of, unpack_result
from sdm_sklearn.activation import log_sdm_activation, sdm_loss

# Below this many multiplications a batch, threads cost more than they bring: each of
# several tiny steps waits for the slowest one, and longest on a busy machine.
_FEW_MULTIPLICATIONS = 1e8
# Polynomial-decay averaging (Shamir and Zhang, ICML 2013) with this exponent: the
# average rests on about the last tenth of the steps.
_AVERAGING_EXPONENT = 8
# With these the SDM activation is the softmax.
SOFTMAX_SIMILARITY = np.e - 2
SOFTMAX_DISTANCE = 1.0


class Signals(NamedTuple):
    """Similarity and Distance of the training and the calibration half."""

    similarity: np.ndarray
    distance: np.ndarray
    calibration_similarity: np.ndarray
    calibration_distance: np.ndarray
    complete: bool  # whether every class has a point with q > 0 in both halves


class TrainingResult(NamedTuple):
    """The adaptor of the best epoch, its rank, and a record per epoch.

    The rank is smaller for a better adaptor: whether an eCDF is empty, then the
    calibration loss.
    """

    adaptor: Adaptor
    rank: tuple[bool, float]
    history: list


def train_adaptor(
    X,
    y,
    train,
    calibration,
    *,
    n_classes,
    n_filters,
    max_epochs,
    patience,
    learning_rate,
    weight_averaging,
    batch_size,
    standardization,
    max_similarity,
    class_weight,
    device,
    seed,
    neighbors="auto",
    exemplars=None,
    on_epoch=None,
    checkpoint=None,
):
    """Train one exemplar adaptor with the SDM loss (SDM, 3.1.6).

    Epoch 1 runs on the softmax. After each epoch q and d of every training point are
    computed anew, and no gradient flows through them. As long as a class has no
    training or no calibration point with q > 0, its eCDF is empty and d is 0 for every
    row, which would end training for good; such epochs are followed by a softmax epoch.
    The epoch with the lowest class-balanced mean loss over the calibration half is
    kept; an epoch with complete eCDFs goes before any without.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Any real dtype; batches are converted one by one.
    y : ndarray of shape (n_samples,), dtype=int64
        Class codes.
    train, calibration : ndarray of int
        Rows of the two halves.
    n_classes, n_filters, max_epochs, batch_size : int
        See :class:`~sdm_sklearn.SDMClassifier`.
    patience : int or None
        Number of epochs without a better one after which training ends.
    learning_rate : float
        Step size of Adam.
    weight_averaging : bool
        Whether the adaptor of an epoch is the running average of the weights. Its q
        and d are those of training, too.
    standardization : {"global", "feature", False}
        See :func:`~sdm_sklearn._linear.fit_standardization`.
    max_similarity : int or None
        Cap of q.
    class_weight : ndarray of shape (n_classes,) or None
        Weights of the training loss, and of the calibration loss that is otherwise
        class-balanced.
    device : str
        torch device of the gradient steps.
    seed : int
        Seed of the initial weights and the batches.
    neighbors : str or object, default="auto"
        See :func:`~sdm_sklearn._search.make_search`.
    exemplars : ndarray of int, default=None
        Positions in `train` of the rows that are searched for q and d. None stands for
        all.
    on_epoch : callable, default=None
        Called as ``on_epoch(record, adaptor)`` after each epoch, with its record and
        the current :class:`Adaptor`. A true return value stops.
    checkpoint : Checkpoint, default=None
        Where to go on from, if there is something, and where to keep each epoch.

    Returns
    -------
    result : TrainingResult

    Raises
    ------
    ValueError
        If torch does not know the device, or the first epoch leaves weights that are
        not finite.
    MemoryError
        If a batch does not fit.
    """
    import torch

    try:
        torch.zeros(1, device=device).item()  # "meta" holds no values
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={device!r} is not available to torch ({reason}): pass "
            "device='cpu', or a device of this machine."
        ) from error

    random = np.random.RandomState(seed)
    by_descent = isinstance(neighbors, str) and neighbors == "nndescent"
    graph = NNDescentGraph() if by_descent else None
    center, scale = fit_standardization(X, train, standardization)
    saved = None if checkpoint is None else checkpoint.load()
    if saved is not None and saved["finished"]:
        return TrainingResult(*unpack_result(saved))
    limited: Callable[[], AbstractContextManager] = nullcontext
    if min(batch_size, len(train)) * X.shape[1] * n_filters < _FEW_MULTIPLICATIONS:
        # OpenMP's limit is one of the calling thread: nothing else is slowed down.
        limited = partial(ThreadpoolController().limit, limits=1, user_api="openmp")
    with (
        # Callers may sit under no_grad or inference_mode: such tensors do not train.
        torch.inference_mode(False),
        torch.enable_grad(),
        explained_memory_error(
            f"Training on {device!r} takes batch_size={batch_size} rows at a time to "
            f"n_filters={n_filters} filters: lower batch_size or n_filters."
        ),
    ):
        parameters = [
            torch.tensor(
                random.uniform(-bound, bound, size=shape),
                dtype=torch.float32,
                device=device,
                requires_grad=True,
            )
            for shape, bound in _layer_shapes(X.shape[1], n_filters, n_classes)
        ]
        state = TrainingState(
            random,
            parameters,
            _Adam(parameters, learning_rate),
            _RunningAverage(parameters) if weight_averaging else None,
            np.full(len(train), SOFTMAX_SIMILARITY),
            np.full(len(train), SOFTMAX_DISTANCE),
        )
        if saved is not None:
            state.restore(saved)
        for epoch in range(len(state.history) + 1, max_epochs + 1):
            total = 0.0
            # Not over the searches between epochs, which need all threads.
            with limited():
                for batch in _batches(random.permutation(len(train)), batch_size):
                    rows = train[batch]
                    inputs = _to_float32(standardize(X[rows], center, scale))
                    hidden = torch.nn.functional.linear(
                        torch.as_tensor(inputs, device=device), *parameters[:2]
                    )
                    logits = torch.nn.functional.linear(hidden, *parameters[2:])
                    loss = sdm_loss(
                        logits,
                        torch.as_tensor(y[rows], device=device),
                        state.similarity[batch],
                        state.distance[batch],
                        class_weight=class_weight,
                    )
                    state.adam.step(torch.autograd.grad(loss, parameters))
                    if state.average is not None:
                        state.average.update(parameters)
                    total += float(loss.detach()) * len(batch)

            adaptor = Adaptor(center, scale, *map(_to_numpy, state.weights))
            if not all(np.isfinite(weights).all() for weights in adaptor):
                if state.history:
                    break  # diverged: what was best before stays
                raise ValueError(
                    "Training diverged in its first epoch: learning_rate="
                    f"{learning_rate:g} is too large for these embeddings. Lower it, "
                    'or scale them with standardize="feature".'
                )
            signals, calibration_logits = measure_signals(
                adaptor,
                X,
                y,
                train,
                calibration,
                n_classes,
                max_similarity,
                neighbors,
                graph,
                exemplars,
            )
            calibration_loss = selection_loss(
                calibration_logits,
                y[calibration],
                signals.calibration_similarity,
                signals.calibration_distance,
                n_classes,
                class_weight,
            )
            record = {
                "epoch": epoch,
                "training_loss": total / len(train),
                "calibration_loss": calibration_loss,
                "mean_similarity": float(signals.calibration_similarity.mean()),
                "mean_distance": float(signals.calibration_distance.mean()),
                "softmax_fallback": not signals.complete,
            }
            state.history.append(record)
            if epoch == 1 or rank_of(record) < state.best_rank:
                state.best, state.best_rank = adaptor, rank_of(record)
                state.best_epoch = epoch
            if on_epoch is not None and on_epoch(record, adaptor):
                break
            if patience is not None and epoch - state.best_epoch >= patience:
                break
            state.similarity, state.distance = signals.similarity, signals.distance
            if checkpoint is not None:
                checkpoint.save({"finished": False, **state.pack()})
        if checkpoint is not None:
            checkpoint.save({"finished": True, **state.pack_result()})
    return TrainingResult(state.best, state.best_rank, state.history)


def measure_signals(
    adaptor,
    X,
    y,
    train,
    calibration,
    n_classes,
    max_similarity,
    neighbors="auto",
    graph=None,
    exemplars=None,
) -> tuple[Signals, np.ndarray]:
    """Compute q and d of both halves, or their softmax values if an eCDF is empty.

    Returns the signals and the logits of the calibration half.
    """
    projection = adaptor.projection()
    coordinates, logits = projection.project(X, train)
    predictions = logits.argmax(axis=1)
    if exemplars is None:
        exemplars = np.arange(len(train))
    index = make_search(
        neighbors,
        coordinates[exemplars],
        y[train[exemplars]],
        predictions[exemplars],
        n_classes,
    )
    similarity, nearest = _measure_training(
        index, coordinates, predictions, exemplars, graph
    )
    ecdf = fit_class_ecdf(nearest, y[train], similarity, n_classes)
    calibration_coordinates, calibration_logits = projection.project(X, calibration)
    calibration_similarity, calibration_nearest, _ = index.query(
        calibration_coordinates, calibration_logits.argmax(axis=1)
    )
    calibration_ecdf = fit_class_ecdf(
        calibration_nearest, y[calibration], calibration_similarity, n_classes
    )
    if any(len(values) == 0 for values in ecdf + calibration_ecdf):
        signals = Signals(
            np.full(len(train), SOFTMAX_SIMILARITY),
            np.full(len(train), SOFTMAX_DISTANCE),
            np.full(len(calibration), SOFTMAX_SIMILARITY),
            np.full(len(calibration), SOFTMAX_DISTANCE),
            False,
        )
    else:
        signals = Signals(
            cap_similarity(similarity, max_similarity),
            evaluate_distance(nearest, ecdf),
            cap_similarity(calibration_similarity, max_similarity),
            evaluate_distance(calibration_nearest, calibration_ecdf),
            True,
        )
    return signals, calibration_logits


def _measure_training(index, coordinates, predictions, exemplars, graph):
    """Compute q and the nearest distance of the training half.

    An exemplar does not find itself. Other rows are not in the index.
    """
    n_rows = len(coordinates)
    similarity, nearest = np.empty(n_rows), np.empty(n_rows)

    def query(rows, *own, **start):
        similarity[rows], nearest[rows], _ = index.query(
            coordinates[rows], predictions[rows], *own, **start
        )

    start = {} if graph is None else {"candidates": graph.find(coordinates[exemplars])}
    query(exemplars, np.arange(len(exemplars)), **start)
    if len(exemplars) < n_rows:
        query(np.delete(np.arange(n_rows), exemplars))
    return similarity, nearest


def selection_loss(logits, y, similarity, distance, n_classes, class_weight):
    """Average the SDM loss within each present class, then over those classes.

    If the training loss has weights of classes, average over the rows with these, so
    that the epoch is chosen for what it was trained for.
    """
    log_probabilities = log_sdm_activation(logits, similarity, distance)
    losses = -log_probabilities[np.arange(len(y)), y] / np.log(2 + similarity)
    if class_weight is not None:
        return float(np.average(losses, weights=class_weight[y].astype(np.float64)))
    counts = np.bincount(y, minlength=n_classes)
    totals = np.bincount(y, weights=losses, minlength=n_classes)
    present = counts > 0
    return float((totals[present] / counts[present]).mean())


class _Adam:
    """Moves the parameters as Adam does.

    `torch.optim` would import torch's compiler on first use, which doubles the start of
    every fresh worker process.
    """

    def __init__(self, parameters, learning_rate, betas=(0.9, 0.999), epsilon=1e-8):
        import torch

        self.parameters = parameters
        self.learning_rate = learning_rate
        self.betas = betas
        self.epsilon = epsilon
        self.first, self.second = (
            [torch.zeros_like(p) for p in parameters] for _ in range(2)
        )
        self.count = 0

    def step(self, gradients):
        """Take one step against the gradients."""
        import torch

        self.count += 1
        decay, decay_squared = self.betas
        scale = self.learning_rate / (1 - decay**self.count)
        correction = 1 - decay_squared**self.count
        with torch.no_grad():
            for p, m, v, g in zip(
                self.parameters, self.first, self.second, gradients, strict=True
            ):
                m.lerp_(g, 1 - decay)
                v.mul_(decay_squared).addcmul_(g, g, value=1 - decay_squared)
                root = (v / correction).sqrt_().add_(self.epsilon)
                p.addcdiv_(m, root, value=-scale)


class _RunningAverage:
    """Averages the weights after each step.

    With large steps the weights jump around what they tend to; the average does not.
    """

    def __init__(self, parameters):
        self.tensors = [p.detach().clone() for p in parameters]
        self.count = 0

    def update(self, parameters):
        """Take in the weights after a step."""
        import torch

        self.count += 1
        weight = (_AVERAGING_EXPONENT + 1) / (_AVERAGING_EXPONENT + self.count)
        with torch.no_grad():
            for average, p in zip(self.tensors, parameters, strict=True):
                average.lerp_(p, weight)


def _layer_shapes(n_features, n_filters, n_classes):
    """Shapes of G, g, W, w with the bounds of their uniform initial values."""
    first, second = n_features**-0.5, n_filters**-0.5
    return [
        ((n_filters, n_features), first),
        ((n_filters,), first),
        ((n_classes, n_filters), second),
        ((n_classes,), second),
    ]


def _batches(order, batch_size):
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def _to_float32(inputs):
    # Overflow shows in the weights, with a message of its own.
    with np.errstate(over="ignore"):
        return inputs.astype(np.float32)


def _to_numpy(parameter):
    return parameter.detach().cpu().numpy().astype(np.float64)
