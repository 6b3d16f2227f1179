"""A book club: people log in and note what they have read."""
