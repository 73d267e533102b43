"""The commands: what each is told, and the document that it makes."""
