"""An inventory: people log in and keep a list of what they own."""
