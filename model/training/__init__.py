"""Training: the objective, the step, the loop of events, and everything that makes it resumable."""
