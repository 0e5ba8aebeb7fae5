"""Search over a step function, the engine in C, translator and scorer."""
