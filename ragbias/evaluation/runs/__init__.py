"""Files of a bench run: records of answers, and run folders."""
