"""Parameters of an estimator as JSON, with their arrays kept beside it."""

import os
from dataclasses import dataclass, field

import numpy as np
from sklearn.model_selection import PredefinedSplit


class NotPlainError(TypeError):
    """A value that a model file does not express."""


@dataclass
class Encoder:
    """Turns parameters into JSON, and their arrays into arrays of the file.

    None, bools, ints, finite floats, strings and lists stand for themselves; all else
    is an object with one entry, whose key says what it is.
    """

    arrays: dict = field(default_factory=dict)
    left_out: list = field(default_factory=list)

    def parameters(self, estimator):
        encoded = {}
        for name, value in estimator.get_params(deep=False).items():
            before = dict(self.arrays)
            try:
                encoded[name] = self.encode(value)
            except NotPlainError:
                self.arrays = before
                self.left_out.append(f"{name}={value!r}")
        return encoded

    def encode(self, value):
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not np.isfinite(value):
            return {"float": repr(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, list):
            return [self.encode(item) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.encode(item) for item in value]}
        if isinstance(value, dict):
            pairs = [[self.encode(k), self.encode(v)] for k, v in value.items()]
            return {"dict": pairs}
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
            name = f"parameter{len(self.arrays)}"
            self.arrays[name] = value
            return {"array": name}
        if type(value) is PredefinedSplit:
            return {"PredefinedSplit": self.encode(value.test_fold)}
        raise NotPlainError


def decode(value, arrays):
    """Turn back what `Encoder.encode` returned.

    Raises
    ------
    ValueError
        If `value` is nothing that it returns.
    """
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "float":
        return float(content)
    if kind == "array":
        return arrays[content]
    items = decode(content, arrays)
    if kind == "tuple":
        return tuple(items)
    if kind == "dict":
        return dict(items)
    if kind == "PredefinedSplit":
        return PredefinedSplit(items)
    raise ValueError(f"{kind!r} is an unknown kind of value")


def encode_records(records):
    """Express a list of dict with the same keys, column by column."""
    encoder = Encoder()
    return {
        name: encoder.encode([record[name] for record in records])
        for name in records[0]
    }


def decode_records(columns):
    """Turn back what `encode_records` returned."""
    values = [decode(column, {}) for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
