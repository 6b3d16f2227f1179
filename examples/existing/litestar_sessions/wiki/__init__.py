"""A wiki: people log in with a session and write pages, and editors remove any page."""
