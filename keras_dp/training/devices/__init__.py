"""Replicas of a model, and the processes of a cluster."""
