"""The adapters, one for each web framework.

One rule: an adapter translates between its framework and the core, and decides nothing. It reads the `Authorization`
headers of a request, passes them to the authenticator, and writes a principal into the request or a problem into the
response. The adapters do not import each other; the private modules of this folder have their shared code.
"""

from __future__ import annotations

from msk_auth._route_audit import AuditedRoute, register_reader
from msk_auth.http.admission import is_same_origin

__all__ = ["AuditedRoute", "is_same_origin", "register_reader"]
