"""The commands of ``ragbias`` in this distribution, with one module per command."""
