"""One rule: what waits of HTTP is written here, once, as `async def`. `tools/generate_sync.py` generates `_sync` from it."""
