import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from sdm_sklearn import _adaptor
from sdm_sklearn._adaptor import (
    SOFTMAX_DISTANCE,
    SOFTMAX_SIMILARITY,
    _Adam,
    _RunningAverage,
    measure_signals,
    selection_loss,
    train_adaptor,
)
from sdm_sklearn._linear import Adaptor
from sdm_sklearn._search import make_search
from tests.conftest import make_blobs

SETTINGS = {
    "n_filters": 8,
    "max_epochs": 10,
    "patience": None,
    "learning_rate": 1e-2,
    "weight_averaging": True,
    "batch_size": 50,
    "standardization": "global",
    "max_similarity": None,
    "class_weight": None,
    "device": "cpu",
    "seed": 0,
}


def train(X, y, n_classes=2, **settings):
    half = len(X) // 2
    return train_adaptor(
        X,
        y,
        np.arange(half),
        np.arange(half, len(X)),
        n_classes=n_classes,
        **(SETTINGS | settings),
    )


def test_learns_and_keeps_the_epoch_with_the_lowest_loss(blobs):
    X, y = blobs
    result = train(X, y)
    losses = [record["calibration_loss"] for record in result.history]
    assert result.rank == (False, min(losses))
    assert min(losses) < losses[0]
    _, logits = result.adaptor.projection().project(X)
    assert (logits.argmax(axis=1) == y).mean() > 0.95
    assert [record["epoch"] for record in result.history] == list(range(1, 11))
    # The kept weights are those of that epoch: training up to it ends there, too.
    shorter = train(X, y, max_epochs=int(np.argmin(losses)) + 1)
    for a, b in zip(shorter.adaptor, result.adaptor, strict=True):
        assert_array_equal(a, b)


def test_epoch_1_is_softmax_training():
    X, y = make_blobs(200)
    settings = {"max_epochs": 1, "batch_size": 1000}
    result = train(X, y, **settings)
    # One full-batch Adam step moves every weight by the learning rate, along the sign
    # of the cross-entropy's gradient at the seed's initial weights.
    center, scale = result.adaptor.center, result.adaptor.scale
    random = np.random.RandomState(0)
    shapes = [((8, 12), 12), ((8,), 12), ((2, 8), 8), ((2,), 8)]
    start = [
        torch.tensor(
            random.uniform(-(fan**-0.5), fan**-0.5, size=shape),
            dtype=torch.float32,
            requires_grad=True,
        )
        for shape, fan in shapes
    ]
    inputs = torch.tensor((X[:100] - center) / scale, dtype=torch.float32)
    hidden = inputs @ start[0].T + start[1]
    logits = hidden @ start[2].T + start[3]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(y[:100]))
    loss.backward()
    assert_allclose(result.history[0]["training_loss"], loss.item(), rtol=1e-5)
    for before, after in zip(start, result.adaptor[2:], strict=True):
        step = before.detach().numpy() - after
        large = np.abs(before.grad.numpy()) > 1e-5
        assert_allclose(
            step[large], 1e-2 * np.sign(before.grad.numpy()[large]), rtol=0.01
        )


def test_adam_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (
        [torch.ones(3, 2, requires_grad=True), torch.ones(4, requires_grad=True)]
        for _ in range(2)
    )
    step, optimizer = _Adam(ours, 0.01).step, torch.optim.Adam(theirs, lr=0.01)
    for _ in range(20):
        gradients = [torch.randn(p.shape, generator=generator) for p in ours]
        step(gradients)
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g
        optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        assert_allclose(a.detach(), b.detach(), rtol=1e-5)


def test_running_average_of_hand_worked_steps():
    # Weights 9/9, 9/10, 9/11 of the steps 1, 2, 3 (exponent 8).
    average = _RunningAverage([torch.tensor([7.0]), torch.tensor([[7.0, 7.0]])])
    for value in (1.0, 2.0, 4.0):
        average.update([torch.tensor([value]), torch.tensor([[value, -value]])])
    expected = (1 * 0.1 + 2 * 0.9) * 2 / 11 + 4 * 9 / 11
    assert_allclose(average.tensors[0], [expected], rtol=1e-6)
    assert_allclose(average.tensors[1], [[expected, -expected]], rtol=1e-6)


def test_averaged_weights_jump_less():
    X, y = make_blobs(400, separation=0.0)  # nothing to learn: all movement is noise
    jumps = []
    for weight_averaging in (False, True):
        filters = []
        train(
            X, y, max_epochs=30, learning_rate=0.05, batch_size=10,
            weight_averaging=weight_averaging,
            on_epoch=lambda record, adaptor, kept=filters: kept.append(adaptor.filters),
        )  # fmt: skip
        jumps.append(np.linalg.norm(np.diff(filters, axis=0)[-10:]))
    assert 0 < jumps[1] < 0.7 * jumps[0]


def test_signals_by_definition():
    X, y = make_blobs(80, separation=3)
    adaptor = train(X, y, max_epochs=2).adaptor
    half = np.arange(40)
    signals, logits = measure_signals(adaptor, X, y, half, half + 40, 2, None)
    hidden, codes = (
        adaptor.transform(X),
        adaptor.projection().project(X)[1].argmax(axis=1),
    )
    assert_allclose(logits, adaptor.projection().project(X)[1][40:])
    for offset, measured in (
        (0, signals.similarity),
        (40, signals.calibration_similarity),
    ):
        for i in range(40):
            distance = np.linalg.norm(hidden[:40] - hidden[offset + i], axis=1)
            order = [j for j in np.argsort(distance) if j != i or offset]
            q = 0
            while (
                q < len(order) and codes[order[q]] == y[order[q]] == codes[offset + i]
            ):
                q += 1
            assert measured[i] == q
    assert signals.complete
    capped, _ = measure_signals(adaptor, X, y, half, half + 40, 2, 3)
    assert_array_equal(capped.similarity, np.minimum(signals.similarity, 3))


def test_stays_on_softmax_while_an_ecdf_is_empty():
    X, y = make_blobs(40)
    # An adaptor that calls everything class 0: class 1 has no point with q > 0.
    constant = Adaptor(
        np.zeros(12), np.ones(12), np.eye(12), np.zeros(12), np.zeros((2, 12)),
        np.array([1.0, 0.0]),
    )  # fmt: skip
    half = np.arange(20)
    signals, _ = measure_signals(constant, X, y, half, half + 20, 2, None)
    assert not signals.complete
    for q in (signals.similarity, signals.calibration_similarity):
        assert_array_equal(q, np.full(20, SOFTMAX_SIMILARITY))
    for d in (signals.distance, signals.calibration_distance):
        assert_array_equal(d, np.full(20, SOFTMAX_DISTANCE))


def test_many_classes_with_few_rows_do_not_stop_training():
    # The published rule sets d = 0 for all rows once one eCDF is empty: weights freeze.
    X, y = make_blobs(40 * 16, n_features=24, n_classes=40, separation=8)
    result = train(
        X, y, 40, max_epochs=60, learning_rate=3e-3, n_filters=24, batch_size=80
    )
    fallback = [record["softmax_fallback"] for record in result.history]
    assert fallback[0]
    assert not fallback[-1]
    _, logits = result.adaptor.projection().project(X)
    assert (logits.argmax(axis=1) == y).mean() > 0.9


def test_an_epoch_with_complete_ecdfs_goes_first(blobs):
    X, y = blobs
    result = train(X, y, max_epochs=3)
    complete = [not record["softmax_fallback"] for record in result.history]
    kept = [
        record["calibration_loss"]
        for record in result.history
        if not record["softmax_fallback"] or not any(complete)
    ]
    assert result.rank == (not any(complete), min(kept))


def test_patience_stops(blobs):
    X, y = blobs
    result = train(X, y, max_epochs=200, patience=3)
    losses = [record["calibration_loss"] for record in result.history]
    assert len(losses) < 200
    assert np.argmin(losses) == len(losses) - 4


def test_an_unknown_device_is_named(blobs):
    with pytest.raises(ValueError, match="device='meta' is not available"):
        train(*blobs, device="meta")
    message = r"device='nowhere' is not available .* pass device='cpu'"
    with pytest.raises(ValueError, match=message):
        train(*blobs, device="nowhere")


def test_divergence_is_named_or_ends_training(blobs):
    X, y = blobs
    with pytest.raises(ValueError, match="diverged in its first epoch: learning_rate"):
        train(X * 1e40, y, standardization=False)
    # One step an epoch: the first leaves huge weights, the second overflows.
    result = train(X, y, learning_rate=1e20, batch_size=1000, max_epochs=30)
    assert len(result.history) == 1
    assert all(np.isfinite(weights).all() for weights in result.adaptor)


def test_on_epoch_may_stop(blobs):
    X, y = blobs
    seen = []

    def on_epoch(record, adaptor):
        seen.append((record["epoch"], adaptor.filters.shape))
        return record["epoch"] == 2

    train(X, y, on_epoch=on_epoch)
    assert seen == [(1, (8, 12)), (2, (8, 12))]


def test_class_weight_moves_the_predictions():
    X, y = make_blobs(400, separation=1)
    shares = []
    for weight in ([1.0, 1.0], [10.0, 1.0]):
        adaptor = train(X, y, max_epochs=2, class_weight=np.array(weight)).adaptor
        shares.append((adaptor.projection().project(X)[1].argmax(axis=1) == 0).mean())
    assert shares[1] > shares[0] + 0.1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8])
def test_any_dtype_is_read_batch_by_batch(dtype):
    X, y = make_blobs(100)
    X = (X * 4).astype(dtype)
    X.flags.writeable = False
    result = train(X, y, max_epochs=2)
    as_double = train(X.astype(np.float64), y, max_epochs=2)
    for a, b in zip(result.adaptor, as_double.adaptor, strict=True):
        assert_array_equal(a, b)


def test_searches_between_epochs_may_use_all_threads(blobs, monkeypatch):
    seen = []

    def spy(*arguments):
        seen.append(torch.get_num_threads())
        return make_search(*arguments)

    monkeypatch.setattr(_adaptor, "make_search", spy)
    with threadpool_limits(3, user_api="openmp"):
        train(*blobs, max_epochs=2)
    assert set(seen) == {3}


def test_selection_loss_by_hand():
    logits = np.log([[0.5, 0.5], [0.25, 0.75], [0.75, 0.25]])
    softmax = (np.full(3, SOFTMAX_SIMILARITY), np.full(3, SOFTMAX_DISTANCE))
    y = np.array([0, 1, 1])
    loss = selection_loss(logits, y, *softmax, n_classes=3, class_weight=None)
    expected = (np.log(2) + (np.log(4 / 3) + np.log(4)) / 2) / 2  # class 2 is absent
    assert_allclose(loss, expected)
    weight = np.array([2.0, 1.0, 5.0])
    loss = selection_loss(logits, y, *softmax, n_classes=3, class_weight=weight)
    expected = (2 * np.log(2) + np.log(4 / 3) + np.log(4)) / 4
    assert_allclose(loss, expected)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_trains_inside_gradless_contexts(context, blobs):
    X, y = blobs
    expected = train(X, y, max_epochs=2)
    with context():
        result = train(X, y, max_epochs=2)
        assert not torch.is_grad_enabled()
    for a, b in zip(result.adaptor, expected.adaptor, strict=True):
        assert_array_equal(a, b)


def test_ambient_default_dtype_and_threads_do_not_matter(blobs):
    X, y = blobs
    expected = train(X, y, max_epochs=2)
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        result = train(X, y, max_epochs=2)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    for a, b in zip(result.adaptor, expected.adaptor, strict=True):
        assert_array_equal(a, b)
