"""HTTP without a framework: what the adapters share, once.

One rule: code in this folder turns values into answers and requests' parts into values. It takes bytes, headers and principals,
never a framework's request, and it awaits nothing: what waits is in `_async`, and in `_sync`, which is generated.
"""
