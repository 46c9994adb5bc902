"""Work in blocks of rows, smaller ones where memory does not suffice."""

from contextlib import contextmanager


def in_blocks(rows, size, work, advice):
    """Do some work on consecutive blocks of rows; halve a block that does not fit.

    Parameters
    ----------
    rows : ndarray or range
        What to cut into blocks.
    size : int
        Number of rows of a block.
    work : callable
        Called with each block. It must be able to start over after a MemoryError.
    advice : str
        What to do if not even one row fits.

    Raises
    ------
    MemoryError
        With `advice`, if not even one row fits.
    """
    start = 0
    while start < len(rows):
        block = rows[start : start + size]
        try:
            work(block)
        except MemoryError as error:
            if len(block) == 1:
                raise MemoryError(f"Not enough memory for one row. {advice}") from error
            size = len(block) // 2
        else:
            start += len(block)


@contextmanager
def explained_memory_error(advice):
    """Turn torch's ways to run out of memory into a MemoryError that gives advice.

    torch raises a RuntimeError: "can't allocate memory" on a CPU, "out of memory" on a
    GPU.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, RuntimeError) and not (
            "allocate memory" in text or "out of memory" in text
        ):
            raise
        reason = text.splitlines()[0] if text else "Out of memory"
        raise MemoryError(f"{reason}. {advice}") from error
