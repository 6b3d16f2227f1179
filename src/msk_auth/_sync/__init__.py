"""One rule: a module here is generated from the one of the same name in `_async`, and blocks where that awaits.

Three are written by hand: `primitives` and `lifecycle`, which have counterparts there, and `off_loop`.
"""
