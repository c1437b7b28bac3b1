"""Channel scaling for a model of your own: the search for its positional channel, and profiles of what was found."""

from ragbias.calibration.profile import Profile

__all__ = ["Profile"]
