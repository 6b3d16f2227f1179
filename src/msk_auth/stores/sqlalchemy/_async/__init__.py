"""One rule: the public classes are written here, once; what they do with a connection is in the modules beside this folder.

`tools/generate_sync.py` generates `_sync` from it, but for `running`, which both halves have by hand.
"""
