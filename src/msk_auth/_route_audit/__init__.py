"""Lists what an application serves and what each route demands; public through `msk_auth.testing`.

One rule: what cannot be read counts as undeclared. A reader per framework knows its routing tables and the
marks that the adapter leaves; `report` judges what they found and knows no framework.
"""
