"""An estimator is fitted as a whole, or does not look fitted."""

from contextlib import contextmanager


@contextmanager
def all_or_nothing(estimator, private):
    """Drop all fitted state before a fit, and again if the fit does not end.

    Also on KeyboardInterrupt: nothing half-fitted may look fitted.

    Parameters
    ----------
    estimator : estimator
        The estimator being fitted.
    private : collection of str
        Its fitted attributes whose names do not end with an underscore.
    """
    _forget(estimator, private)
    try:
        yield
    except BaseException:
        _forget(estimator, private)
        raise


def _forget(estimator, private):
    for name in list(vars(estimator)):
        fitted = name.endswith("_") and not name.startswith("_")
        if fitted or name in private:
            delattr(estimator, name)
