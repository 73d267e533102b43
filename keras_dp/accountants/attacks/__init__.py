"""The best attack on a ledger, and the privacy of groups."""
