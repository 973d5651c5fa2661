"""How good a model is on rows: losses, exact answers, and the metrics of steps and evaluations."""
