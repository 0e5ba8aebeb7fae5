"""The training loop: update, loss, schedule, resume, metrics."""
