from flask import Flask

from msk_auth import Authenticator, Owner
from msk_auth.integrations.flask import FlaskAuth
from msk_auth.stores.memory import MemoryKeyStore


def find_owner(name): return Owner(name, {"tasks:read"}, user=name)  # fmt: skip


app = Flask(__name__)
auth = FlaskAuth(Authenticator(MemoryKeyStore(), find_owner=find_owner), app)


@app.get("/tasks")
@auth.require("tasks:read")
def tasks(): return ["water the plants"]  # fmt: skip
