"""Programs that measure, and from the runs on real models to what is kept of them: ``make results-page``."""
