"""Lists what an application serves and what each route demands; public through `msk_auth.testing`.

One rule: what cannot be read counts as undeclared. Each adapter registers a reader, which knows its framework's routing
tables and the marks that the adapter leaves; `report` judges what the readers found. This folder knows no framework.
"""
