"""The state of training after an epoch, and its way to numbers and arrays and back."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdm_sklearn._linear import Adaptor


@dataclass
class TrainingState:
    """All that training goes on from after an epoch.

    Parameters
    ----------
    random : RandomState
        Generator of the batches.
    parameters : list of Tensor
        Weights that the gradient moves.
    adam : object
        Optimiser, with its moments `first` and `second` and its `count` of steps.
    average : object or None
        Running average of the weights, with its `tensors` and its `count`.
    similarity, distance : ndarray of shape (n_train,)
        q and d that the next epoch trains with.
    history : list of dict
        Record of each epoch so far.
    best : Adaptor
        Adaptor of the best epoch so far.
    best_rank : tuple
        Its :func:`rank_of`.
    best_epoch : int
        Its number, from 1.
    """

    random: np.random.RandomState
    parameters: list
    adam: Any
    average: Any
    similarity: np.ndarray
    distance: np.ndarray
    history: list = field(default_factory=list)
    best: Any = None
    best_rank: tuple[bool, float] = (True, np.inf)
    best_epoch: int = 0

    @property
    def weights(self):
        """The weights that make up the adaptor of an epoch."""
        return self.parameters if self.average is None else self.average.tensors

    def pack(self):
        """Return all of it as numbers and arrays."""
        generator, keys, *counters = self.random.get_state()
        record = {
            "random": [generator, *counters],
            "random_keys": keys,
            "n_steps": self.adam.count,
            "similarity": self.similarity,
            "distance": self.distance,
        }
        for i, tensor in enumerate(self._tensors()):
            record[f"tensor{i}"] = tensor.detach().cpu().numpy()
        return record | self.pack_result()

    def pack_result(self):
        """Return what stays of it when training has ended."""
        best = {f"best_{name}": value for name, value in self.best._asdict().items()}
        return best | {"history": self.history, "best_epoch": self.best_epoch}

    def restore(self, record):
        """Take over what `pack` returned."""
        generator, *counters = record["random"]
        self.random.set_state((generator, record["random_keys"], *counters))
        self.adam.count = record["n_steps"]
        if self.average is not None:
            self.average.count = record["n_steps"]
        for i, tensor in enumerate(self._tensors()):
            tensor.data.copy_(tensor.data.new_tensor(record[f"tensor{i}"]))
        self.similarity, self.distance = record["similarity"], record["distance"]
        self.best, self.best_rank, self.history = unpack_result(record)
        self.best_epoch = record["best_epoch"]

    def _tensors(self):
        averages = [] if self.average is None else self.average.tensors
        return [*self.parameters, *self.adam.first, *self.adam.second, *averages]


def unpack_result(record):
    """Return the best adaptor, its rank and the history from a packed state."""
    best = Adaptor(*(record[f"best_{name}"] for name in Adaptor._fields))
    history = record["history"]
    return best, rank_of(history[record["best_epoch"] - 1]), history


def rank_of(record):
    """Order epochs: those with complete eCDFs first, then by calibration loss."""
    return record["softmax_fallback"], record["calibration_loss"]
