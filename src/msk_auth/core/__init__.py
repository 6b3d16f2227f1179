"""The rules: what a credential is, who may do what, and in which order that is checked.

Code in this folder decides and never waits. It performs no I/O, reads no clock (time is an
argument) and imports no framework, so the order of checks, which is the security property of this
library, exists once and can be tested as pure functions.
"""
