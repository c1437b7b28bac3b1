"""Channel scaling for a model of your own: the search for its positional channel."""

from ragbias.methods.profiles import Profile

__all__ = ["Profile"]
