"""Extensions that handle the errors of a Flask application themselves, as the application runs in production."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import flask_restful
import flask_restx
import flask_smorest
import pytest
from flask import Blueprint, Flask, got_request_exception
from flask.views import MethodView
from tests.contract.adapter import CASES, make_world
from tests.contract.adapter_contract import check_all
from tests.integrations.adapters import Driver
from tests.integrations.flask_app import PlainRoutes, flask_app, name_of
from tests.integrations.flask_site import Site
from werkzeug.exceptions import HTTPException

from msk_auth import require
from msk_auth.errors import CredentialsMissing, Problem
from msk_auth.integrations.flask import FlaskAuth
from msk_auth.testing import BackgroundLoop


def class_of(base: type, rule: str, views: dict[str, Any]) -> type:
    """A class-based view, from its attributes; those in capitals are its methods."""
    named = {name.lower() if name.isupper() else name: value for name, value in views.items()}
    return type(name_of(rule), (base,), named)


class Restful(PlainRoutes):
    """The routes of Flask-RESTful."""

    resource: Any = flask_restful.Resource

    def __init__(self, app: Flask, **options: Any) -> None:
        self.apis = {app.name: self.api(app, **options)}

    def api(self, scope: Flask | Blueprint, **options: Any) -> Any:
        return flask_restful.Api(scope, **options)

    def blueprint(self, name: str) -> Blueprint:
        made = super().blueprint(name)
        self.apis[name] = self.api(made)
        return made

    def add(self, scope: Flask | Blueprint, rule: str, **views: Any) -> None:
        resource = class_of(self.resource, rule, views)
        self.apis[scope.name].add_resource(resource, rule, endpoint=name_of(rule))


class Restx(Restful):
    """The routes of Flask-RESTX."""

    resource = flask_restx.Resource

    def api(self, scope: Flask | Blueprint, **options: Any) -> Any:
        return flask_restx.Api(scope, doc=False, add_specs=False, **options)


class Smorest(PlainRoutes):
    """The routes of flask-smorest."""

    def __init__(self, app: Flask) -> None:
        spec = {"title": "Tasks", "version": "1", "openapi_version": "3.1.0"}
        self.api = flask_smorest.Api(app, spec_kwargs=spec)

    def blueprint(self, name: str) -> Blueprint:
        return flask_smorest.Blueprint(name, __name__)

    def add(self, scope: Any, rule: str, **views: Any) -> None:
        scope.route(rule, endpoint=name_of(rule))(class_of(MethodView, rule, views))

    def register(self, app: Flask, blueprint: Blueprint) -> None:
        self.api.register_blueprint(blueprint)


REPLACING: dict[str, Callable[..., Restful]] = {"restful": Restful, "restx": Restx}
"""Those that replace the application's handling of errors."""

EXTENSIONS: dict[str, Callable[[Flask], PlainRoutes]] = {**REPLACING, "smorest": Smorest}


# Extensions change how an error leaves a view, and not how headers and bodies are read.
ONE_FOR_EACH = {
    (case.request, case.status, case.code, case.challenge): case for case in CASES
}.values()


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_every_route_gives_its_answer(extension: str, loop: BackgroundLoop) -> None:
    world = make_world()
    app = flask_app(world.blocking, extend=EXTENSIONS[extension])
    check_all(ONE_FOR_EACH, Driver(loop, app), world)


class Extended(Site):
    """An application with an extension that replaces its handling of errors."""

    def __init__(self, extension: str, **config: Any) -> None:
        super().__init__(make_world())
        self.app.config.update(config)
        self.extension: Any = {"restful": flask_restful, "restx": flask_restx}[extension]
        self.make = REPLACING[extension]
        self.signalled: list[Exception] = []
        got_request_exception.connect(self._note, self.app)

    def _note(self, _app: Flask, exception: Exception) -> None:
        self.signalled.append(exception)

    def add(self, *, api_decorators: Sequence[Any] = (), **attributes: Any) -> None:
        """Add a class at `/tasks` to an API, which may have decorators for all of its classes."""
        self.make(self.app, decorators=list(api_decorators)).add(self.app, "/tasks", **attributes)

    def get(self, *_: Any) -> Any:
        """A method of the class."""
        self.called.append("get")
        return {"a": "secret"}

    def marshalled(self, view: Callable[..., Any]) -> Callable[..., Any]:
        """Have the extension write what a view returns: the fields of an object, or null."""
        fields = import_module(f"{self.extension.__name__}.fields")
        with_fields: Any = self.extension.marshal_with({"a": fields.String})
        made: Callable[..., Any] = with_fields(view)
        return made


def protect_blueprint(site: Extended, _: Any) -> None:
    routes = site.make(site.app)
    blueprint = routes.blueprint("inner")
    site.auth.protect(blueprint, require("tasks:run"))
    routes.add(blueprint, "/tasks", GET=site.get)
    routes.register(site.app, blueprint)


def protect_application(site: Extended, _: Any) -> None:
    site.auth.protect(site.app, require("tasks:run"))
    site.add(GET=site.get)


def declare(site: Extended, _: Any) -> None:
    site.auth.declare_view(site.app, "tasks", require("tasks:run"))
    site.add(GET=site.get)


def hide(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides what it decorates."""

    def hidden(*args: Any) -> Any:
        return view(*args)

    return hidden


# How a guard gets onto a class of an extension.
GUARDS: dict[str, Callable[[Extended, Any], None]] = {
    "method": lambda site, guard: site.add(GET=guard(site.get)),
    "two guards": lambda site, guard: site.add(GET=site.auth.require()(guard(site.get))),
    "below marshal_with": lambda site, guard: site.add(GET=site.marshalled(guard(site.get))),
    "above marshal_with": lambda site, guard: site.add(GET=guard(site.marshalled(site.get))),
    "class": lambda site, guard: site.add(GET=site.get, decorators=[guard]),
    "class and method": lambda site, guard: site.add(
        GET=guard(site.get), decorators=[site.auth.require()]
    ),
    "methods": lambda site, guard: site.add(GET=site.get, method_decorators=[guard]),
    "methods, marshalled": lambda site, guard: site.add(
        GET=site.get, method_decorators=[guard, site.marshalled]
    ),
    "API": lambda site, guard: site.add(GET=site.get, api_decorators=[guard]),
    "blueprint": protect_blueprint,
    "application": protect_application,
    "endpoint": declare,
}

# What is refused, and how.
REFUSED = {None: (401, "credentials_missing"), "key_read": (403, "permission_denied")}


# In a test of the application exceptions leave it.
@pytest.mark.parametrize(
    ("guard", "testing"), [*((name, False) for name in GUARDS), ("method", True)]
)
@pytest.mark.parametrize("extension", REPLACING)
def test_a_guard_returns_the_refusal(extension: str, guard: str, testing: bool) -> None:
    site = Extended(extension, TESTING=testing)
    GUARDS[guard](site, site.auth.require("tasks:run"))
    plain = Site(site.world)
    plain.app.get("/tasks")(plain.auth.require("tasks:run")(plain.view()))
    for credential, (status, code) in REFUSED.items():
        reply, expected = (
            site.ask("GET", "/tasks", credential),
            plain.ask("GET", "/tasks", credential),
        )
        assert (reply.status_code, reply.json["code"]) == (status, code)
        assert (reply.data, reply.headers) == (expected.data, expected.headers)
    assert site.called == []
    assert site.signalled == []
    assert site.ask("GET", "/tasks", "key").json == {"a": "secret"}


def test_decorators_of_one_method_guard_that_method() -> None:
    site = Extended("restful")
    guard = site.auth.require("tasks:run")
    site.add(GET=site.get, POST=site.get, method_decorators={"get": [guard]})
    assert site.code("GET", "/tasks") == "credentials_missing"
    # The extension does not apply them to HEAD, which the same method serves.
    assert site.ask("HEAD", "/tasks").status_code == 401
    assert site.code("POST", "/tasks") == "200"


@pytest.mark.parametrize("extension", REPLACING)
def test_handlers_of_the_application_answer_a_refusal(extension: str) -> None:
    site = Extended(extension)
    site.app.register_error_handler(CredentialsMissing, lambda error: ({"mine": error.code}, 499))
    site.add(GET=site.auth.require()(site.get))
    reply = site.ask("GET", "/tasks")
    assert (reply.status_code, reply.json) == (499, {"mine": "credentials_missing"})
    assert site.signalled == []


@pytest.mark.parametrize("extension", REPLACING)
def test_refusals_as_http_errors(extension: str) -> None:
    site = Extended(extension)
    app = Flask(__name__)
    auth = FlaskAuth(site.auth.authenticator, app, errors="http")
    app.register_error_handler(401, lambda error: ({"mine": error.description}, 401))
    REPLACING[extension](app).add(app, "/tasks", GET=auth.require()(site.get))
    reply = app.test_client().get("/tasks")
    assert (reply.status_code, list(reply.json)) == (401, ["mine"])
    assert reply.headers["WWW-Authenticate"] == 'Bearer realm="api"'


# How a view that raises a problem gets onto a class of an extension: what is around it is a guard, or a decorator of others.
RETURNING: dict[str, Callable[[Extended, Any], None]] = {
    "guarded": lambda site, view: site.add(GET=view),
    "guarded, and its class": lambda site, view: site.add(
        GET=view, decorators=[site.auth.require()]
    ),
}
PASSING: dict[str, Callable[[Extended, Any], None]] = {
    "below marshal_with": lambda site, view: site.add(GET=site.marshalled(view)),
    "below a decorator": lambda site, view: site.add(GET=hide(view)),
    "class": lambda site, view: site.add(GET=view, decorators=[site.marshalled]),
    "methods": lambda site, view: site.add(GET=view, method_decorators=[site.marshalled]),
}


@pytest.mark.parametrize("way", [*RETURNING, *PASSING])
@pytest.mark.parametrize("extension", REPLACING)
def test_nothing_makes_an_answer_of_a_problem_in_a_view(extension: str, way: str) -> None:
    site = Extended(extension)

    def get(*_: Any) -> Any:
        raise CredentialsMissing

    (RETURNING | PASSING)[way](site, site.auth.require()(get))
    reply = site.ask("GET", "/tasks", "key")
    assert (reply.status_code, reply.headers["WWW-Authenticate"]) == (401, 'Bearer realm="api"')
    if way in RETURNING:
        assert reply.content_type == "application/problem+json"
        assert site.signalled == []
    if way in RETURNING or extension == "restful":
        assert reply.json["code"] == "credentials_missing"


def test_where_http_errors_are_trapped_a_refusal_stays_one() -> None:
    site = Site(make_world())
    site.app.config["TRAP_HTTP_EXCEPTIONS"] = True
    site.app.register_error_handler(HTTPException, lambda _: ("mine", 418))
    site.app.add_url_rule("/tasks", "tasks", hide(site.auth.require("tasks:run")(site.view())))
    for credential, (status, code) in REFUSED.items():
        reply = site.ask("GET", "/tasks", credential)
        assert (reply.status_code, reply.json["code"]) == (status, code)


@pytest.mark.parametrize("extension", REPLACING)
def test_an_applications_own_error_stays_with_the_extension(extension: str) -> None:
    site = Extended(extension)

    def get(*_: Any) -> Any:
        raise LookupError("mine")

    site.add(GET=site.auth.require()(get))
    reply = site.ask("GET", "/tasks", "key")
    assert (reply.status_code, reply.json) == (500, {"message": "Internal Server Error"})
    assert [type(error) for error in site.signalled] == [LookupError]


@pytest.mark.parametrize("extension", REPLACING)
def test_code_without_a_guard_can_make_the_answer(extension: str) -> None:
    site = Extended(extension)

    def get(*_: Any) -> Any:
        try:
            site.auth.admit(require("tasks:run"))
        except Problem as problem:
            return site.auth.answer(problem)
        return {"a": "secret"}

    site.add(GET=get)
    assert site.code("GET", "/tasks") == "credentials_missing"
    assert site.code("GET", "/tasks", "key_read") == "permission_denied"
    assert site.code("GET", "/tasks", "key") == "200"
    assert site.signalled == []
