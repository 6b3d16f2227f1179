"""What a server of `test_servers.py` serves: one of the applications, in a world of its own.

The name of the adapter and the file for the world's names come from the environment.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.integrations.adapters import ADAPTERS
from tests.integrations.flask_app import WsgiBridge

from msk_auth.testing.adapter import make_world

_world = make_world()
_made = ADAPTERS[os.environ["SERVED_ADAPTER"]](_world.authenticator)
app: Any = _made.app if isinstance(_made, WsgiBridge) else _made

# Moved into place, so that no reader gets half of it.
_names = Path(os.environ["SERVED_NAMES"])
_names.with_suffix(".part").write_text(json.dumps(_world.names), encoding="utf-8")
_names.with_suffix(".part").replace(_names)
