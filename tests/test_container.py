import io
import json
import os
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes
from numpy.testing import assert_array_equal

from sdm_sklearn import ModelFileError
from sdm_sklearn import _container as container
from sdm_sklearn._container import read_container, write_container

HEADER = {"text": "Zürich \ud800", "number": 0.1, "list": [1, None, True]}
ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yz"])}


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("container") / "file.npz"
    write_container(path, HEADER, ARRAYS)
    return path.read_bytes()


def seal(data):
    """Give changed content the checksum that belongs to it."""
    n_hashed = len(data) - 64
    return data[:n_hashed] + container._hash_start(io.BytesIO(data), n_hashed)


def craft(tmp_path, members, compression=zipfile.ZIP_STORED):
    """Write an archive with a right checksum and any members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.comment = b"sha256:" + b"0" * 64
        for name, data in members.items():
            archive.writestr(name, data)
    path = tmp_path / "crafted.npz"
    path.write_bytes(seal(buffer.getvalue()))
    return path


@given(
    array=arrays(scalar_dtypes(), array_shapes(min_dims=0, min_side=0, max_side=4)),
    text=st.text(),
)
def test_round_trip_of_any_array(array, text, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "file.npz"
    write_container(path, {"text": text}, {"array": array})
    header, arrays_read = read_container(path)
    assert header == {"text": text}
    assert arrays_read["array"].dtype == array.dtype
    assert arrays_read["array"].shape == array.shape
    assert arrays_read["array"].tobytes() == array.tobytes()


def test_numpy_and_zip_read_the_file(content, tmp_path):
    path = tmp_path / "file.npz"
    path.write_bytes(content)
    with np.load(path, allow_pickle=False) as archive:
        assert_array_equal(archive["a"], ARRAYS["a"])
        assert json.loads(archive["header.json"]) == HEADER


def test_memory_order_is_kept(tmp_path):
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    write_container(tmp_path / "file.npz", {}, {"a": fortran, "t": fortran[:, ::2]})
    _, read = read_container(tmp_path / "file.npz")
    assert read["a"].flags.f_contiguous
    assert_array_equal(read["t"], fortran[:, ::2])


def test_same_content_same_bytes(content, tmp_path):
    write_container(tmp_path / "again.npz", HEADER, ARRAYS)
    assert (tmp_path / "again.npz").read_bytes() == content


def test_objects_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_container(tmp_path / "file.npz", {}, {"a": np.array([{}, {}])})
    assert os.listdir(tmp_path) == []


# Damage -------------------------------------------------------------------------------


@given(data=st.data())
def test_every_changed_byte_is_seen(data, content, tmp_path_factory):
    position = data.draw(st.integers(0, len(content) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda v: v != content[position]))
    path = tmp_path_factory.mktemp("changed") / "file.npz"
    path.write_bytes(content[:position] + bytes([value]) + content[position + 1 :])
    with pytest.raises(ModelFileError):
        read_container(path)


@given(data=st.data())
def test_every_truncation_is_seen(data, content, tmp_path_factory):
    path = tmp_path_factory.mktemp("short") / "file.npz"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ModelFileError, match="no model file|truncated"):
        read_container(path)


def test_messages_tell_damage_from_strangers(content, tmp_path):
    path = tmp_path / "file.npz"
    path.write_bytes(content[:300] + b"?" + content[301:])
    with pytest.raises(ModelFileError, match="file.npz' is damaged or was changed"):
        read_container(path)
    path.write_bytes(b"\x80\x04pickled")
    with pytest.raises(ModelFileError, match="is no model file: it does not begin"):
        read_container(path)
    np.savez(path, a=1)
    with pytest.raises(ModelFileError, match="does not end with the checksum"):
        read_container(path)
    with pytest.raises(FileNotFoundError):
        read_container(tmp_path / "nothing.npz")


def npy(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


LONG = npy(np.zeros(3)).replace(b"(3,), }", b"(30000000000000,), }")


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"header.json": "{"},
        {"header.json": "[]"},
        {"header.json": "[" * 100_000},
        {"header.json": "{}", "a.npy": b"no array"},
        {"header.json": "{}", "a.npy": npy(np.zeros(9))[:-1]},
        {"header.json": "{}", "a.npy": npy(np.zeros(9)) + b"more"},
        {"header.json": "{}", "a.npy": npy(np.zeros(3), version=(2, 0))},
        {"header.json": "{}", "a.npy": LONG},
        {"header.json": "{}", "a.npy": npy(np.array([{}]), allow_pickle=True)},
    ],
)
def test_a_right_checksum_does_not_make_a_file(members, tmp_path):
    with pytest.raises(ModelFileError, match="although its checksum|no object"):
        read_container(craft(tmp_path, members))


def test_compressed_members_are_refused(tmp_path):
    members = {"header.json": "{}", "a.npy": npy(np.zeros(10**6))}
    with pytest.raises(ModelFileError, match="not as long as it says"):
        read_container(craft(tmp_path, members, zipfile.ZIP_DEFLATED))


# Writing ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_older_file_and_nothing_else(step, tmp_path, monkeypatch):
    path = tmp_path / "file.npz"
    write_container(path, HEADER, ARRAYS)

    def fail(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_container(path, {}, {})
    monkeypatch.undo()
    assert read_container(path)[0] == HEADER
    assert os.listdir(tmp_path) == ["file.npz"]


@pytest.mark.parametrize(
    "step", ["np.lib.format.write_array", "os.fsync", "os.replace"]
)
def test_a_killed_process_leaves_the_older_file(step, tmp_path):
    path = tmp_path / "file.npz"
    write_container(path, HEADER, ARRAYS)
    code = (
        "import os, signal, numpy as np\n"
        "from sdm_sklearn._container import write_container\n"
        f"{step} = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"write_container({str(path)!r}, {{}}, {{'a': np.zeros(9)}})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    assert read_container(path)[0] == HEADER


@pytest.mark.skipif(os.name != "posix", reason="permissions and links of POSIX")
def test_permissions_and_links_are_the_users(tmp_path):
    mask = os.umask(0o027)
    try:
        write_container(tmp_path / "file.npz", {}, {})
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file.npz").stat().st_mode) == 0o640
    (tmp_path / "link.npz").symlink_to(tmp_path / "file.npz")
    (tmp_path / "file.npz").chmod(0o600)
    write_container(tmp_path / "link.npz", HEADER, {})
    assert (tmp_path / "link.npz").is_symlink()
    assert read_container(tmp_path / "file.npz")[0] == HEADER
    assert stat.S_IMODE((tmp_path / "file.npz").stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_only_a_file_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, ""):
        with pytest.raises(ValueError, match="is no file that save could replace"):
            write_container(path, HEADER, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_long_names(tmp_path):
    for name in ("a" * 255, "\N{SNOWMAN}" * 85):
        write_container(tmp_path / name, HEADER, {})
        assert read_container(tmp_path / name)[0] == HEADER
