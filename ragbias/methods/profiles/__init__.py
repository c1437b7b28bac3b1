"""What channel scaling does to which model: the profiles of the paper, that of ``tiny``, and those of a file."""

from ragbias.methods.profiles.profile import Profile, find, of_model, shipped

__all__ = ["Profile", "find", "of_model", "shipped"]
