"""A help desk: people log in, open tickets and close them."""
