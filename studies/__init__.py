"""From the runs of the studies on real models to what the repository keeps of them: ``make results-page``."""
