"""scikit-learn's callbacks, without a trace in the caller's random numbers.

`sklearn.callback` imports rich where it is installed, and that draws from Python's
global generator while it is imported.
"""

import random

_state = random.getstate()
from sklearn.callback import CallbackSupportMixin  # noqa: E402 (between the two)

random.setstate(_state)

__all__ = ["CallbackSupportMixin"]
