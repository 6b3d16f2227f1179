"""What a server of `test_servers.py` serves: one of the applications, in a world of its own.

The name of the adapter and the file for the world's names come from the environment.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.contract.adapter import make_world

_adapter = os.environ["SERVED_ADAPTER"]
_world = make_world()
# Not by way of `adapters`, which imports every framework: that takes longer than all requests.
_module = import_module(f"tests.integrations.{_adapter}_app")
_used = _world.blocking if _adapter == "flask" else _world.authenticator
_made = getattr(_module, f"{_adapter}_app")(_used)
# A bridge from ASGI is around the WSGI application.
app: Any = _made.app if _adapter == "flask" else _made

# Moved into place, so that no reader gets half of it.
_names = Path(os.environ["SERVED_NAMES"])
_names.with_suffix(".part").write_text(json.dumps(_world.names), encoding="utf-8")
_names.with_suffix(".part").replace(_names)
