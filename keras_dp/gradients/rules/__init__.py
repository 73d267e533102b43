"""One rule per layer kind: from a call to its gradients."""
