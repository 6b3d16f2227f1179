"""Who people are: users, passwords, logins, sessions, the configuration and the audit log."""
