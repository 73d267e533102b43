"""Estimators: scores of canaries become lower bounds on epsilon."""
