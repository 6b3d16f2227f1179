"""HTTP without a framework: the shared code of the adapters.

One rule: code in this folder turns values into answers and requests' parts into values. It takes bytes, headers and principals,
never a framework's request. Code that waits is in `_async`, and in `_sync`, which is generated.
"""
