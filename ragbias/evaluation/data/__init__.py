"""Files of an evaluation: questions in JSON lines go in; records of answers and the folder of a run come out."""
