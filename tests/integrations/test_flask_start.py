"""Mistakes in the guards of Flask applications are reported when the application is complete."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView
from tests.contract.adapter import World
from tests.integrations.flask_site import Site
from werkzeug.routing import Rule

from msk_auth import require, require_interactive
from msk_auth.errors import ConfigurationError

Build = Callable[[Site, Blueprint], object]
"""Completes an application, which has a blueprint at hand."""


def above_its_route(site: Site, _admin: Blueprint) -> None:
    site.auth.require()(site.app.get("/")(site.view("wrong")))


def above_its_endpoint(site: Site, _admin: Blueprint) -> None:
    site.app.add_url_rule("/", "wrong")
    site.auth.require()(site.app.endpoint("wrong")(site.view()))


def above_another_decorator_above_the_route(site: Site, _admin: Blueprint) -> None:
    view = site.app.get("/")(site.view("wrong"))

    @functools.wraps(view)
    def logged() -> str:
        return view()

    site.auth.require()(logged)


def above_the_route_of_a_blueprint(site: Site, admin: Blueprint) -> None:
    site.auth.require_interactive()(admin.get("/")(site.view("wrong")))
    site.app.register_blueprint(admin)


def one_below_and_one_above(site: Site, _admin: Blueprint) -> None:
    view = site.app.get("/")(site.auth.require()(site.view("wrong")))
    site.auth.require_interactive()(view)


def a_route_for_what_has_a_guard_elsewhere(site: Site, _admin: Blueprint) -> None:
    view = site.view()
    site.app.add_url_rule("/new", "new", site.auth.require()(view))
    site.app.add_url_rule("/", "wrong", view)


def in_a_protected_blueprint(site: Site, admin: Blueprint) -> None:
    site.auth.protect(admin)
    admin.get("/")(site.view("silent"))
    site.app.register_blueprint(admin)


def in_a_blueprint_of_a_protected_one(site: Site, admin: Blueprint) -> None:
    site.auth.protect(admin)
    inner = Blueprint("inner", __name__)
    inner.get("/")(site.view("silent"))
    admin.register_blueprint(inner)
    site.app.register_blueprint(admin)


def in_a_protected_application(site: Site, _admin: Blueprint) -> None:
    site.auth.protect(site.app)
    site.app.get("/")(site.view("silent"))


def with_a_rule_that_has_no_methods(site: Site, _admin: Blueprint) -> None:
    site.auth.protect(site.app)
    site.app.url_map.add(Rule("/", endpoint="silent"))
    site.app.endpoint("silent")(site.view("silent"))


ABOVE = r"is above its route and protects nothing\. Write the route first"
NOTHING = (
    r"declares no policy for GET, and its blueprint or application is protected\. Decorate it with"
)

MISTAKES: dict[Build, str] = {
    # A guard that stands
    above_its_route: rf"'wrong' {ABOVE}",
    above_its_endpoint: rf"'wrong' {ABOVE}",
    above_another_decorator_above_the_route: rf"'wrong' {ABOVE}",
    above_the_route_of_a_blueprint: rf"'admin\.wrong' {ABOVE}",
    one_below_and_one_above: rf"'wrong' {ABOVE}",
    a_route_for_what_has_a_guard_elsewhere: rf"'wrong' {ABOVE}",
    # A view without a policy
    in_a_protected_blueprint: rf"'admin\.silent' {NOTHING}",
    in_a_blueprint_of_a_protected_one: rf"'admin\.inner\.silent' {NOTHING}",
    in_a_protected_application: rf"'silent' {NOTHING}",
    with_a_rule_that_has_no_methods: rf"'silent' {NOTHING}",
}


def guards_below_their_routes(site: Site, admin: Blueprint) -> None:
    site.auth.protect(admin)
    site.auth.protect(site.app)
    tasks = site.auth.require()(site.auth.require("tasks:read")(site.view("tasks")))
    site.app.get("/tasks")(site.app.get("/jobs")(tasks))
    admin.get("/config")(site.auth.require_interactive()(site.view("config")))
    admin.get("/health")(site.auth.public(site.view("health")))
    site.app.register_blueprint(admin)


def the_adapter_comes_last(site: Site, admin: Blueprint) -> None:
    site.app = Flask(__name__)
    site.auth.protect(admin, require("a"))
    site.app.get("/open")(site.view("opened"))
    admin.get("/config")(site.view("config"))
    site.app.register_blueprint(admin)
    site.auth.init_app(site.app)


def views_that_cannot_be_decorated(site: Site, _admin: Blueprint) -> None:
    site.auth.protect(site.app)
    site.auth.declare_view(site.app, "of_another_package", require("a"))
    site.app.add_url_rule("/x", "of_another_package", lambda: "")
    site.app.add_url_rule("/later", "later")
    site.app.endpoint("later")(site.auth.public(lambda: ""))


def a_rule_without_a_view_and_a_view_without_a_rule(site: Site, _admin: Blueprint) -> None:
    site.auth.protect(site.app)
    site.app.add_url_rule("/files/<name>", "cdn", build_only=True)
    site.app.endpoint("no rule yet")(site.auth.public(lambda: ""))


def the_same_view_in_two_applications(site: Site, _admin: Blueprint) -> None:
    opened = site.view("opened")
    Flask("other").get("/open")(opened)
    site.app.get("/closed")(site.auth.require()(opened))


@pytest.fixture
def site(world: World) -> Site:
    return Site(world)


@pytest.fixture
def admin() -> Blueprint:
    return Blueprint("admin", __name__)


@pytest.mark.parametrize("build", MISTAKES)
def test_a_complete_application_with_a_mistake_answers_no_request(
    site: Site, admin: Blueprint, build: Build
) -> None:
    build(site, admin)
    with pytest.raises(ConfigurationError, match=MISTAKES[build]):
        site.auth.check(site.app)
    for path in ("/", "/nowhere"):
        assert site.ask("GET", path, "jwt").status_code == 500
    assert site.called == []


@pytest.mark.parametrize(
    "build",
    [
        guards_below_their_routes,
        the_adapter_comes_last,
        views_that_cannot_be_decorated,
        a_rule_without_a_view_and_a_view_without_a_rule,
        the_same_view_in_two_applications,
    ],
)
def test_a_correct_application_is_accepted(site: Site, admin: Blueprint, build: Build) -> None:
    build(site, admin)
    site.auth.check(site.app)


class TestAGuardInTheWrongPlace:
    """It protects nothing there."""

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
