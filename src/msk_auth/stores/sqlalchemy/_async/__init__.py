"""One rule: the public classes are written here, once; modules beside this folder have the operations on a connection.

`tools/generate_sync.py` generates `_sync` from this folder, except `running`, which is written by hand in both halves.
"""
