"""One training run, from a new model to the report of what it learnt: the work of ``ors-server train``."""
