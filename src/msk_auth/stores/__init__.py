"""Where keys are kept: in memory for tests and experiments, in a database for everything else.

Every store here implements :class:`~msk_auth.KeyStore` or :class:`~msk_auth.AsyncKeyStore` and passes
`msk_auth.testing.StoreContract`. A store keeps what it is told and decides nothing about who may do what.
"""
