"""The experiments that the methods' papers explain position bias with, each a module: it measures, draws and tells.

Measured is the embedded model as well as any other: an experiment takes a model, samples with the gold document at
several positions, and its own settings.
"""
