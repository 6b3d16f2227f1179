"""One rule: what blocks of HTTP is generated, from `_async`."""
