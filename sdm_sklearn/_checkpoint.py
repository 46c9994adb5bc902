"""Checkpoints of a fit: one file for each restart, with its state after an epoch.

A checkpoint is found by a digest of all that decides over training: the rows, their
labels, the split, the seed, the parameters, and the versions of the packages. One of
other data or parameters is never read. As training is deterministic, it goes on from
any of its earlier states to the same model.
"""

import hashlib
import logging
import os
import warnings
from contextlib import suppress
from importlib.metadata import version

import numpy as np

import sdm_sklearn
from sdm_sklearn._container import ModelFileError, read_container, write_container
from sdm_sklearn._plain_values import decode_records, encode_records

# Parameters that have no part in training, or one by the split and the seed only.
_WITHOUT_EFFECT = {
    "alpha",
    "calibration_size",
    "certify_size",
    "checkpoint_dir",
    "confidence",
    "conservative",
    "cv",
    "ensemble",
    "guarantee",
    "n_jobs",
    "n_restarts",
    "random_state",
    "region",
    "reject_label",
    "support_size",
}
_CHUNK_ROWS = 4096
_logger = logging.getLogger("sdm_sklearn")


class Checkpoint:
    """The state of one restart on disk.

    Parameters
    ----------
    path : str
        Its file, which need not exist.
    """

    def __init__(self, path):
        self.path = path

    def save(self, record):
        """Write numbers and arrays, in place of earlier ones.

        Parameters
        ----------
        record : dict
            Arrays; "history", a list of dict; and what JSON can express.
        """
        arrays = {k: v for k, v in record.items() if isinstance(v, np.ndarray)}
        header = {k: v for k, v in record.items() if k not in arrays}
        header["history"] = encode_records(record["history"])
        write_container(self.path, header, arrays)

    def load(self):
        """Return what `save` was given, or None if there is nothing to read."""
        try:
            header, arrays = read_container(self.path)
        except FileNotFoundError:
            return None
        except ModelFileError as error:
            warnings.warn(
                f"A checkpoint cannot be read, so that its restart begins anew: "
                f"{error}",
                UserWarning,
                stacklevel=2,
            )
            return None
        if not {"finished", "history"} <= header.keys():
            warnings.warn(
                f"{self.path} is not a checkpoint, so that its restart begins anew.",
                UserWarning,
                stacklevel=2,
            )
            return None
        header["history"] = decode_records(header["history"])
        _logger.info(
            "A restart goes on after epoch %d of its checkpoint %s.",
            len(header["history"]),
            self.path,
        )
        return header | arrays

    def remove(self):
        """Remove the file, if there is one."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)


def open_checkpoints(estimator, X, codes, classes, splits, seeds):
    """Return the checkpoint of each restart, None for each if there is no folder.

    Parameters
    ----------
    estimator : SDMClassifier
        Holds `checkpoint_dir` and the parameters of training.
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    codes : ndarray of shape (n_samples,)
        Class codes.
    classes : ndarray of shape (n_classes,)
        Class labels, which `class_weight` may name.
    splits : list of Split
        Training and calibration rows and exemplars of each restart.
    seeds : ndarray of shape (n_restarts,)
        Seed of each restart.

    Returns
    -------
    checkpoints : list of Checkpoint or None

    Raises
    ------
    ValueError
        If `random_state` is None: no fit would ever find a checkpoint again.
    """
    folder = estimator.checkpoint_dir
    if folder is None:
        return [None] * len(splits)
    if estimator.random_state is None:
        raise ValueError(
            f"checkpoint_dir={os.fspath(folder)!r} needs a seed: with "
            "random_state=None every fit draws other halves, and none could go on "
            "where another stopped. Pass an int as random_state."
        )
    folder = os.path.abspath(folder)  # workers may stand elsewhere
    os.makedirs(folder, exist_ok=True)
    common = hashlib.sha256()
    parameters = {
        name: value
        for name, value in estimator.get_params(deep=False).items()
        if name not in _WITHOUT_EFFECT
    }
    versions = [sdm_sklearn.__version__, version("torch"), version("numpy")]
    common.update(repr((versions, parameters, classes.tolist())).encode())
    for array in (X, codes):
        _update(common, array)
    checkpoints = []
    for split, seed in zip(splits, seeds, strict=True):
        own = common.copy()
        for array in (*split, np.asarray(seed)):
            _update(own, array)
        name = f"restart-{own.hexdigest()}.npz"
        checkpoints.append(Checkpoint(os.path.join(folder, name)))
    return checkpoints


def _update(digest, array):
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    rows = np.atleast_1d(array)
    for start in range(0, len(rows), _CHUNK_ROWS):
        digest.update(rows[start : start + _CHUNK_ROWS].tobytes())
