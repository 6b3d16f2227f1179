"""Mistakes in the guards of Flask applications are reported when the application is complete."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView
from tests.contract.adapter import World
from tests.integrations.flask_site import Site

from msk_auth import require, require_interactive
from msk_auth.errors import ConfigurationError

START = """
from flask import Blueprint, Flask
from msk_auth import Authenticator, require
from msk_auth.integrations.flask import FlaskAuth
from msk_auth.stores.memory import MemoryKeyStore

app = Flask(__name__, static_folder=None)
auth = FlaskAuth(Authenticator(MemoryKeyStore(), find_owner=lambda _: None))
admin = Blueprint("admin", __name__)
"""
ABOVE = r"is above its route and protects nothing\. Write the route first"
NOTHING = (
    r"declares no policy for GET, and its blueprint or application is protected\. Decorate it with"
)

WHEN_COMPLETE = {
    "a guard above its route": (
        """
auth.init_app(app)

@auth.require()
@app.get("/tasks")
def tasks(): ...
""",
        rf"'tasks' {ABOVE}",
    ),
    "a guard above its route, and the adapter comes last": (
        """
@auth.require()
@app.get("/tasks")
def tasks(): ...

auth.init_app(app)
""",
        rf"'tasks' {ABOVE}",
    ),
    "a guard above the endpoint": (
        """
auth.init_app(app)
app.add_url_rule("/tasks", "list tasks")

@auth.require()
@app.endpoint("list tasks")
def tasks(): ...
""",
        rf"'list tasks' {ABOVE}",
    ),
    "a guard above the route of a blueprint": (
        """
auth.init_app(app)

@auth.require_interactive()
@admin.get("/config")
def config(): ...

app.register_blueprint(admin)
""",
        rf"'admin\.config' {ABOVE}",
    ),
    "a view without a policy in a protected blueprint": (
        """
auth.init_app(app)
auth.protect(admin)

@admin.get("/config")
def config(): ...

app.register_blueprint(admin)
""",
        rf"'admin\.config' {NOTHING}",
    ),
    "a view without a policy in a blueprint of a protected one": (
        """
auth.init_app(app)
auth.protect(admin)
inner = Blueprint("inner", __name__)

@inner.get("/config")
def config(): ...

admin.register_blueprint(inner)
app.register_blueprint(admin)
""",
        rf"'admin\.inner\.config' {NOTHING}",
    ),
    "a view without a policy in a protected application": (
        """
auth.init_app(app)
auth.protect(app)

@app.get("/tasks")
def tasks(): ...
""",
        rf"'tasks' {NOTHING}",
    ),
    "a view without a policy in an application that is protected last": (
        """
auth.init_app(app)

@app.get("/tasks")
def tasks(): ...

auth.protect(app)
""",
        rf"'tasks' {NOTHING}",
    ),
}

RIGHT = {
    "guards below their routes": """
auth.init_app(app)
auth.protect(admin)
auth.protect(app)

@app.get("/tasks")
@app.get("/jobs")
@auth.require()
@auth.require("tasks:read")
def tasks(): ...

@admin.get("/config")
@auth.require_interactive()
def config(): ...

@admin.get("/health")
@auth.public
def health(): ...

app.register_blueprint(admin)
""",
    "the adapter comes last": """
auth.protect(admin, require("a"))

@app.get("/open")
def opened(): ...

@admin.get("/config")
def config(): ...

app.register_blueprint(admin)
auth.init_app(app)
""",
    "views that cannot be decorated": """
from flask import Flask
auth.init_app(app)
auth.protect(app)
auth.declare_view(app, "of_another_package", require("a"))
app.add_url_rule("/x", "of_another_package", lambda: "")
app.add_url_rule("/later", "later")
app.endpoint("later")(auth.public(lambda: ""))
""",
    "a rule without a view, and a view without a rule": """
auth.init_app(app)
auth.protect(app)
app.add_url_rule("/files/<name>", "cdn", build_only=True)
app.endpoint("no rule yet")(auth.public(lambda: ""))
""",
    "the same name in two applications": """
def opened(): ...

Flask("other").get("/open")(opened)
auth.init_app(app)
app.get("/closed")(auth.require()(opened))
""",
}


@pytest.fixture
def site(world: World) -> Site:
    return Site(world)


@pytest.mark.parametrize("name", WHEN_COMPLETE)
def test_a_complete_application_with_a_mistake_answers_no_request(
    name: str, tmp_path: Path
) -> None:
    source, message = WHEN_COMPLETE[name]
    module = tmp_path / "web.py"
    module.write_text(START + source)
    names = runpy.run_path(str(module))
    with pytest.raises(ConfigurationError, match=message):
        names["auth"].check(names["app"])
    assert names["app"].test_client().get("/nowhere").status_code == 500


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_application_is_accepted(name: str, tmp_path: Path) -> None:
    module = tmp_path / "web.py"
    module.write_text(START + RIGHT[name])
    names = runpy.run_path(str(module))
    names["auth"].check(names["app"])


class TestAGuardInTheWrongPlace:
    """It protects nothing there."""

    def test_above_another_decorator_above_the_route(self, site: Site) -> None:
        view = site.app.get("/tasks")(site.view("tasks"))

        @functools.wraps(view)
        def logged() -> str:
            return view()

        site.auth.require()(logged)
        with pytest.raises(ConfigurationError, match="'tasks' is above its route"):
            site.auth.check(site.app)

    def test_one_guard_below_and_one_above(self, site: Site) -> None:
        view = site.app.get("/tasks")(site.auth.require()(site.view("tasks")))
        site.auth.require_interactive()(view)
        with pytest.raises(ConfigurationError, match="'tasks' is above its route"):
            site.auth.check(site.app)

    def test_a_route_for_what_has_a_guard_elsewhere(self, site: Site) -> None:
        view = site.view("view")
        site.app.add_url_rule("/new", "new", site.auth.require()(view))
        site.app.add_url_rule("/old", "old", view)
        with pytest.raises(ConfigurationError, match="'old' is above its route"):
            site.auth.check(site.app)
        assert site.ask("GET", "/old", "jwt").status_code == 500

    @pytest.mark.parametrize("wrong", [MethodView, "view", None])
    def test_on_what_is_no_view(self, site: Site, wrong: Any) -> None:
        for decorate in (site.auth.require(), site.auth.require_interactive(), site.auth.public):
            with pytest.raises(ConfigurationError, match="goes on a function"):
                decorate(wrong)

    def test_public_and_guarded(self, site: Site) -> None:
        with pytest.raises(ConfigurationError, match="public and guarded"):
            site.auth.require()(site.auth.public(site.view()))
        with pytest.raises(ConfigurationError, match="public and guarded"):
            site.auth.public(site.auth.require()(site.view()))


class TestWhatIsFoundBeforeTheFirstRequest:
    """What was put under an endpoint by hand, past Flask's own ways: nothing is answered until it is right."""

    def expose(self, site: Site) -> None:
        view = site.view("tasks")
        site.auth.require("tasks:read")(view)
        site.app.add_url_rule("/tasks", "tasks")
        site.app.view_functions["tasks"] = view

    def test_no_request_is_answered(self, site: Site) -> None:
        self.expose(site)
        site.app.get("/public")(site.auth.public(site.view("public")))
        for _ in range(3):
            for path in ("/tasks", "/public", "/nowhere"):
                for credential in (None, "jwt"):
                    assert site.code("GET", path, credential) == "500"
        assert site.called == []

    def test_a_test_of_the_application_sees_why(self, site: Site) -> None:
        self.expose(site)
        site.app.testing = True
        with pytest.raises(ConfigurationError, match="'tasks' is above its route"):
            site.ask("GET", "/tasks", "jwt")

    def test_a_view_that_comes_after_a_check(self, site: Site) -> None:
        site.auth.check(site.app)
        blueprint = Blueprint("late", __name__)
        site.auth.require()(blueprint.get("/late")(site.view()))
        site.app.register_blueprint(blueprint)
        assert site.ask("GET", "/late").status_code == 500
        assert site.called == []

    def test_a_view_that_comes_after_the_first_request(self, site: Site) -> None:
        site.app.add_url_rule("/tasks", "tasks", site.view())
        assert site.ask("GET", "/tasks").status_code == 200
        exposed = site.view("tasks")
        site.auth.require()(exposed)
        site.app.view_functions["tasks"] = exposed
        assert site.ask("GET", "/tasks").status_code == 500
        assert site.called == ["view"]


class TestViewsThatCannotBeDecorated:
    @pytest.fixture
    def blueprint(self, tmp_path: Path) -> Blueprint:
        folder = tmp_path / "static"
        folder.mkdir()
        folder.joinpath("secret.txt").write_text("in a file")
        return Blueprint("admin", __name__, url_prefix="/admin", static_folder=str(folder))

    def test_static_files_have_to_be_declared_like_all_else(
        self, site: Site, blueprint: Blueprint
    ) -> None:
        site.auth.protect(blueprint)
        site.app.register_blueprint(blueprint)
        with pytest.raises(ConfigurationError) as refused:
            site.auth.check(site.app)
        assert site.ask("GET", "/admin/static/secret.txt").status_code == 500
        assert "such as static files, write" in str(refused.value)
        assert "auth.declare_view(app, 'admin.static', require(…))" in str(refused.value)

    def test_for_everybody(self, site: Site, blueprint: Blueprint) -> None:
        site.auth.protect(blueprint)
        site.auth.declare_view(site.app, "admin.static", None)
        site.app.register_blueprint(blueprint)
        assert site.ask("GET", "/admin/static/secret.txt").data == b"in a file"
        assert site.auth.policies_of(site.app, "admin.static", "GET") == ()

    def test_with_a_policy(self, site: Site, blueprint: Blueprint) -> None:
        site.auth.protect(blueprint)
        site.auth.declare_view(site.app, "admin.static", require_interactive("admin:config"))
        site.app.register_blueprint(blueprint)
        path = "/admin/static/secret.txt"
        for method in ("GET", "HEAD", "OPTIONS"):
            assert site.ask(method, path).status_code == 401
            assert site.ask(method, path, "key_admin").status_code == 403
            assert site.ask(method, path, "jwt_admin").status_code == 200

    def test_the_files_of_an_application_that_is_protected(self, site: Site) -> None:
        site.app = Flask(__name__)
        site.auth.init_app(site.app)
        site.auth.protect(site.app)
        with pytest.raises(ConfigurationError, match=r"declare_view\(app, 'static'"):
            site.auth.check(site.app)
        site.auth.declare_view(site.app, "static", None)
        assert site.code("GET", "/static/x") == "404"

    def test_on_top_of_what_the_view_itself_demands(self, site: Site) -> None:
        site.app.get("/tasks")(site.auth.require("tasks:read")(site.view("tasks")))
        site.auth.declare_view(site.app, "tasks", require_interactive())
        assert site.auth.policies_of(site.app, "tasks", "GET") == (
            require("tasks:read"),
            require_interactive(),
        )
        assert site.code("GET", "/tasks", "key") == "interactive_required"
        assert site.code("GET", "/tasks", "jwt") == "200"

    def test_two_declarations_that_contradict_each_other(self, site: Site) -> None:
        site.app.get("/a")(site.auth.require()(site.view("a")))
        site.app.get("/b")(site.auth.public(site.view("b")))
        for endpoint, policy in (("a", None), ("b", require())):
            site.auth.declare_view(site.app, endpoint, policy)
            with pytest.raises(
                ConfigurationError, match=f"{endpoint} is declared public and guard"
            ):
                site.auth.policies_of(site.app, endpoint, "GET")
        with pytest.raises(ConfigurationError, match="is declared public and guard"):
            site.auth.check(site.app)
        with pytest.raises(ConfigurationError, match="called twice for 'a'"):
            site.auth.declare_view(site.app, "a", require())

    def test_a_name_that_no_view_has(self, site: Site) -> None:
        site.app.get("/a")(site.view("tasks"))
        site.auth.declare_view(site.app, "taks", require())
        with pytest.raises(ConfigurationError, match=r"names 'taks', .* It has: tasks\."):
            site.auth.check(site.app)
        assert site.ask("GET", "/a").status_code == 500
