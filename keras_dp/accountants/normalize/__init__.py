"""From a ledger's rounds to the mechanisms that accountants account for."""
