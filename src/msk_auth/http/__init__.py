"""HTTP without a framework: what the adapters share, once.

One rule: code in this folder turns values into answers and requests' parts into values. It takes bytes, headers and principals,
never a framework's request, and it awaits nothing.
"""
