"""Estimators of lower bounds on epsilon from the scores of canaries."""
