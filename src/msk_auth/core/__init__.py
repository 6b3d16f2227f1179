"""Credentials, permissions, and the order of their checks.

One rule: code in this folder decides and never waits. It performs no I/O, reads no clock (time is an argument) and imports
no framework. `_async` awaits the look-ups between two checks and calls this code. So the order of the
checks, which is the security property of this library, exists once.
"""
