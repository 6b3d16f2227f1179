"""The HTTP API: routers that parse a request, call `accounts` or `tasks`, and render the response.

One rule: a router decides nothing. Each route names its guard, and the called service checks ownership.
`json_route` parses the requests of all routers, and `event_stream` writes streams.
"""
