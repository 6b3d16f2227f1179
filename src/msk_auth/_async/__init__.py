"""One rule: what waits is written here, once, as `async def`; what it decides is in the core.

`tools/generate_sync.py` generates `_sync` from it, but for `primitives` and `lifecycle`, where the two halves truly differ.
"""
