"""Models that cannot be trained privately are found here."""
