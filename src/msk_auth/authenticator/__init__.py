"""One rule: what the two authenticators have in common, and what neither blocks nor awaits.

`Authenticator` blocks (`_sync`) and `AsyncAuthenticator` awaits (`_async`); apart from that they are the same. This is the way
from the header to the principal, in one direction:

1. `authenticate` (`authenticator` of either half) looks for the header in the cache of leased verifications.
2. `core.authentication.read_credential` reads the header and checks the form of the credential. Garbage ends here.
3. `run` (`ports`) drives the flow: it makes each look-up of the flow, and sends the result back.
4. `_verify` (`base`) is the flow.
5. `Leases.begin` (`leases.cache`) finds an entry of the cache, or waits for another request with the same credential.
6. `core.authentication.authenticate` finds the record, compares the digest, finds the owner, and returns the principal.

Before it comes an adapter: its guard, `admit`, `_verify` and the flow `http.admission.admit`, which verifies a request once.
`tests/integrations/test_way.py` lists the functions, and fails where one is added.

A failure of the store or of a look-up becomes :class:`~msk_auth.StoreUnavailable`: fail closed.
"""
