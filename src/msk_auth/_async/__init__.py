"""One rule: code that waits is written here, once, as `async def`; the core decides.

`tools/generate_sync.py` generates `_sync` from this folder, except `primitives` and `watch`, which are written by hand in
both halves.
"""
