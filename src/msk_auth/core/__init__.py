"""What a credential is, who may do what, and in which order that is checked.

One rule: code in this folder decides and never waits. It performs no I/O, reads no clock (time is an argument) and imports
no framework. So the order of the checks, which is the security property of this library, exists once and is tested as pure
functions.
"""
