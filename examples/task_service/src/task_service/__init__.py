"""A deployable task service whose API takes interactive logins and API keys.

One rule: a request passes the layers in one direction, `server`, `middleware`, `app`, `api` or `web`, then `accounts` or
`tasks`, then `db`, and no module imports one above it. The import contract in `pyproject.toml` places every module.
"""
