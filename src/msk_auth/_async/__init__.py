"""One rule: what waits is written here, once, as `async def`; what it decides is in the core.

`tools/generate_sync.py` generates `_sync` from it, but for what truly differs: `primitives` and `watch` are written by hand in
both halves.
"""
