"""The places of ledgers: files and PostgreSQL."""
