"""The service for whatever wants an ASGI application and can call a function for it.

::

    msk-auth routes --factory task_service.asgi:create_app
    uvicorn --factory task_service.asgi:create_app

`task-service serve` is the way to serve it: it bounds what a slow or endless request may cost, which uvicorn by itself
does not.
"""

from __future__ import annotations

from fastapi import FastAPI

from . import app
from .settings import load_settings


def create_app() -> FastAPI:
    """The service as the environment describes it. Makes its data folder and its secrets if they are missing.

    Raises:
        ConfigurationError: A setting or the data folder cannot be used; the message says why.
    """
    return app.create_app(load_settings())
