"""One rule: a module here is generated from the one of the same name in `_async`, and blocks where that awaits.

`primitives`, `lifecycle` and `watch` are written by hand, and have counterparts there; `verdict` decides for the watches of both.
"""
