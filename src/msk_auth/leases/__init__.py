"""Leases: for how long a process may reuse what it verified, and how long a revocation waits for that.

`leases.cache` states the rules, and `docs/explanation/lease.md` argues for them. Code in this folder never blocks or
awaits: what has to wait is a flow, and the drivers run it.
"""
