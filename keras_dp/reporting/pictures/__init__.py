"""Pictures of a ledger's cost, as SVG that any page can hold."""
