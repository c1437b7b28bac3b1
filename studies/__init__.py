"""Experiments of the papers, measurements, and the results of studies on real models (``make results-page``)."""
