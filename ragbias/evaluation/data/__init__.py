"""Files that go in and out: questions, records of answers, the folder of a run, models by name."""
