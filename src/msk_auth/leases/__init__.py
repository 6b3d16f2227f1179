"""Leases: how long a process may reuse a verification, and how long a revocation waits for that.

One rule: a change that ends access waits until every lease that was granted before it has ended. `leases.cache` states
this in detail, and `docs/explanation/lease.md` has the argument. Code in this folder neither blocks nor awaits: what has to
wait is in `_async`.
"""
