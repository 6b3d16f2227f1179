"""The HTTP API: thin routers that read a request, call the service, and write the answer."""
