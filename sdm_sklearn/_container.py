"""One file of JSON and NumPy arrays: written as a whole, checked before it is read.

The file is a zip archive as :func:`numpy.savez` writes it, not compressed: an ``.npy``
member for each array, and ``header.json``. The comment of the archive, its last bytes,
is ``sha256:`` and the SHA-256 of all bytes before the 64 hexadecimal digits. So
:func:`numpy.load` and ``unzip`` open it, and no bit can change unseen. Nothing in it is
pickled.
"""

import hashlib
import json
import math
import os
import secrets
import stat
import zipfile
from contextlib import contextmanager, suppress

import numpy as np

HEADER = "header.json"
_MARK = b"sha256:"
_N_DIGITS = 64
_CHUNK_BYTES = 2**20


class ModelFileError(ValueError):
    """A file is no model file, or damaged, or from a later version."""


def write_container(path, header, arrays):
    """Write a header and arrays; what stood at `path` stays until all is on disk.

    Parameters
    ----------
    path : str or path-like
        File to write.
    header : dict
        What JSON can express.
    arrays : dict of ndarray
        Arrays of numbers, bools or strings, by name.
    """
    with _replaced(path) as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.comment = _MARK + b"0" * _N_DIGITS
            # The date of a ZipInfo is fixed: the same content gives the same bytes.
            text = json.dumps(header, allow_nan=False)
            archive.writestr(zipfile.ZipInfo(HEADER), text)
            for name, array in arrays.items():
                info = zipfile.ZipInfo(f"{name}.npy")
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        n_hashed = file.seek(0, os.SEEK_END) - _N_DIGITS
        digest = _hash_start(file, n_hashed)
        file.seek(n_hashed)
        file.write(digest)


def read_container(path):
    """Read what :func:`write_container` wrote.

    Parameters
    ----------
    path : str or path-like
        File to read.

    Returns
    -------
    header : dict
    arrays : dict of ndarray

    Raises
    ------
    ModelFileError
        If the file is anything else, or any byte of it has changed.
    """
    with open(path, "rb") as file:
        _check_digest(file, path)
        try:
            with zipfile.ZipFile(file) as archive:
                header = json.loads(archive.read(HEADER))
                arrays = {
                    info.filename.removesuffix(".npy"): _read_array(archive, info)
                    for info in archive.infolist()
                    if info.filename != HEADER
                }
        except (
            EOFError,
            KeyError,
            NotImplementedError,
            RuntimeError,
            ValueError,
            zipfile.BadZipFile,
        ) as error:
            raise ModelFileError(
                f"{os.fspath(path)!r} is no file of this package, although its "
                f"checksum is right: {error}"
            ) from error
    if not isinstance(header, dict):
        raise ModelFileError(f"{os.fspath(path)!r} has a header that is no object.")
    return header, arrays


def _read_array(archive, info):
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version != (1, 0):
            raise ValueError(f"{info.filename} is in version {version} of npy")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        # Before an array is allocated: a few bytes must not claim terabytes.
        n_bytes = math.prod(shape) * dtype.itemsize
        if member.tell() + n_bytes != info.file_size or info.compress_type:
            raise ValueError(f"{info.filename} is not as long as it says")
        member.seek(0)
        return np.lib.format.read_array(member, allow_pickle=False)


def _check_digest(file, path):
    name = os.fspath(path)
    if file.read(2) != b"PK":
        raise ModelFileError(
            f"{name!r} is no model file: it does not begin like one. A pickle is read "
            "by pickle.load or joblib.load, if you trust its source."
        )
    n_hashed = file.seek(0, os.SEEK_END) - _N_DIGITS
    file.seek(max(n_hashed - len(_MARK), 0))
    if file.read(len(_MARK)) != _MARK:
        raise ModelFileError(
            f"{name!r} does not end with the checksum of a model file: it is "
            "truncated, or was not written by save. Copy or save it again."
        )
    stated = file.read()
    found = _hash_start(file, n_hashed)
    if found != stated:
        raise ModelFileError(
            f"{name!r} is damaged or was changed: the SHA-256 of its content is "
            f"{found.decode()}, and it states {stated!r}. Copy or save it again."
        )


def _hash_start(file, n_bytes):
    """Return the SHA-256 of the first `n_bytes` of a file, in hexadecimal digits."""
    file.seek(0)
    sha = hashlib.sha256()
    while n_bytes > 0 and (chunk := file.read(min(n_bytes, _CHUNK_BYTES))):
        sha.update(chunk)
        n_bytes -= len(chunk)
    return sha.hexdigest().encode()


@contextmanager
def _replaced(path):
    """Open a file beside `path` that takes its place once it is complete on disk."""
    given, path = path, os.path.realpath(path)  # a link stays one
    folder, name = os.path.split(path)
    if not os.fspath(given) or (os.path.exists(path) and not os.path.isfile(path)):
        raise ValueError(f"{os.fspath(given)!r} is no file that save could replace.")
    # Names may have 255 bytes, and a character up to 4.
    partial = os.path.join(folder, f".{name[:50]}.{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "x+b") as file:
            if os.path.exists(path):
                # Whoever could not read the old file shall not read the new one.
                os.chmod(partial, stat.S_IMODE(os.stat(path).st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise
    if os.name == "posix":
        # The new name itself must survive a power cut, too.
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
