"""Accounts: users, passwords, logins, sessions, API keys, the live configuration and the audit log.

One rule: a change and its audit entry share a transaction, and a change that takes access away returns only after every
lease granted before its commit has expired: :meth:`.changes.Accounts.narrow`. So a request that starts after the answer to
"disable this user" is refused by every process.
"""
