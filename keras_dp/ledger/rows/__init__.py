"""The rows of a ledger: rounds and statements, chained by hashes."""
