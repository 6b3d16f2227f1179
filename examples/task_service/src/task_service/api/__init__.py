"""The HTTP API: thin routers that read a request, ask a service, and write the answer.

One rule: a router decides nothing. Each route names its guard; whose things they are is decided by the service that it
asks. `json_route` reads requests for all of them, `event_stream` writes answers that go on.
"""
