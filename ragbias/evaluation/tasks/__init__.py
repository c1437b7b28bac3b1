"""The tasks of the bench, one file each."""
