"""What a credential is, who may do what, and in which order that is checked.

One rule: code in this folder decides and never waits. It performs no I/O, reads no clock (time is an argument) and imports
no framework. What has to be looked up between two checks is awaited in `_async`, which calls this code. So the order of the
checks, which is the security property of this library, exists once.
"""
