"""The service's database: its tables, how it is opened, and its migrations."""
