"""One rule: HTTP code that waits is written here, once, as `async def`. `tools/generate_sync.py` generates `_sync` from it."""
