"""Learn: rollouts, groups, batches, loss, step, weights; evaluation; the run's page."""
