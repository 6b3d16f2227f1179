"""One rule: what the two authenticators have in common, and what neither blocks nor awaits.

`Authenticator` blocks (`_sync`) and `AsyncAuthenticator` awaits (`_async`); apart from that they are the same. This is the way
from the header to the principal, in one direction:

1. `authenticate` (`authenticator` of either half) looks for the header in the cache of leased verifications.
2. `core.authentication.read_credential` reads the header and checks the form of the credential. Garbage ends here.
3. `_verify` looks for a lease, or waits for another request with the same credential (`leases`).
4. `AsyncVerifier.authenticate` (`verification`) finds the record, compares the digest, finds the owner, and returns the
   principal. `look_ups` checks that each record has the id that was asked for.

Before it comes an adapter: its guard, `admit`, `_verify` and the flow `http.admission.admit`, which verifies a request once.
`tests/integrations/test_way.py` lists the functions, and fails where one is added.

A failure of the store or of a look-up becomes :class:`~msk_auth.errors.StoreUnavailable`: fail closed.
"""
