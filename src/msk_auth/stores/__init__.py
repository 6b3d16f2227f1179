"""Where keys are kept: in memory for tests and experiments, in a database for everything else.

Every store here implements :class:`~msk_auth.KeyStore` or :class:`~msk_auth.AsyncKeyStore` and passes
`msk_auth.testing.StoreContract`.

One rule: a store keeps records and limits exactly, and does not decide who may do what.
"""
