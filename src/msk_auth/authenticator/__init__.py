"""One rule: an authenticator runs the flows of the core, and decides nothing itself.

`Authenticator` blocks and `AsyncAuthenticator` awaits; apart from that they are the same. This is the way from the header
to the principal, in one direction:

1. `authenticate` (`blocking`, `awaiting`) looks for the header in the cache of leased verifications.
2. `core.flows.read_credential` reads the header and checks the form of the credential. Garbage ends here.
3. `run` (`ports`) drives the flow: it makes each look-up of the flow, and sends the result back.
4. `Leases.verify` (`leases.cache`) uses an entry of the cache, or waits for another request with the same credential.
5. `core.flows.authenticate` finds the record, compares the digest, finds the owner, and returns the principal.

A failure of the store or of a look-up becomes :class:`~msk_auth.StoreUnavailable`: fail closed.
"""

from __future__ import annotations

from .awaiting import AsyncAuthenticator
from .base import PROBLEM_BASE
from .blocking import Authenticator

__all__ = ["PROBLEM_BASE", "AsyncAuthenticator", "Authenticator"]
