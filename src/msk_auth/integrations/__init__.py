"""The adapters: each translates between one web framework and the core, and decides nothing.

An adapter takes the `Authorization` headers out of a request, hands them to the authenticator, and writes a principal
into the request or a problem into the response. The adapters do not know each other; what they share is in the
private modules of this folder.
"""
