"""The callbacks that `fit` adds to those that it is given."""
