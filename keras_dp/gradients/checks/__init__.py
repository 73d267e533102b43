"""What is looked at in a model before its first private step."""
