"""Documents that people sign: their requirements, and a ledger's answers."""
