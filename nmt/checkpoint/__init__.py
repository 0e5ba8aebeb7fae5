"""The checkpoints of a run, model directories, averages."""
