"""Per-example gradients in the form their layer leaves them."""
