"""One rule: a module here is generated from the one of the same name in `_async`, but for `running`, which is written by hand."""
