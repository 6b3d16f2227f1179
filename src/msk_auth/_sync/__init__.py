"""One rule: a module here is generated from the one of the same name in `_async`, and blocks where that awaits.

`primitives` and `watch` are written by hand, and have counterparts there.
"""
