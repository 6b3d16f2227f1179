"""What is Flask's own: decorators and their order, blueprints, automatic methods, errors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask")

from anyio.lowlevel import checkpoint
from flask import Blueprint, Flask, Response, abort, current_app, g, redirect, request, url_for
from flask.typing import ResponseReturnValue
from flask.views import MethodView, View
from tests.contract.adapter import START, World, make_world
from tests.integrations.flask_site import Site
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import HTTPException, ImATeapot, NotFound, TooManyRequests, Unauthorized
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client, TestResponse

from msk_auth import (
    AsyncAuthenticator,
    Policy,
    require,
    require_interactive,
)
from msk_auth.errors import ConfigurationError, CredentialsMissing, Problem
from msk_auth.http.admission import known_principal
from msk_auth.integrations import flask
from msk_auth.integrations.flask import FlaskAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore

# Werkzeug 2.2 limits the bodies of forms alone, and answers a body of another type than JSON with 400.
OLD_WERKZEUG = version("werkzeug").startswith("2.2.")
NO_JSON = (400, None) if OLD_WERKZEUG else (415, "Did not attempt to load JSON")
PREFLIGHT = {"Origin": "https://pages.test", "Access-Control-Request-Method": "GET"}


@pytest.fixture
def site(world: World) -> Site:
    return Site(world)


class TestMethods:
    """A guard covers every method, those that Flask answers by itself included."""

    def test_head_and_options(self, site: Site) -> None:
        site.app.get("/config")(site.auth.require_interactive("admin:config")(site.view()))
        for method in ("GET", "HEAD", "OPTIONS"):
            reply = site.ask(method, "/config")
            assert (reply.status_code, reply.headers["WWW-Authenticate"]) == (
                401,
                'Bearer realm="api"',
            )
            assert site.ask(method, "/config", "key_admin").status_code == 403
            assert site.ask(method, "/config", "jwt").status_code == 403
        assert site.called == []
        assert "Allow" not in site.ask("OPTIONS", "/config").headers
        options = site.ask("OPTIONS", "/config", "jwt_admin")
        assert (options.status_code, options.allow) == (200, {"GET", "HEAD", "OPTIONS"})

    def test_a_preflight_cannot_carry_credentials(self, site: Site) -> None:
        # Fetch standard, "CORS-preflight fetch": credentials mode is "omit".
        site.app.get("/config")(site.auth.require_interactive()(site.view()))
        reply = site.client().options("/config", headers=PREFLIGHT)
        assert (reply.status_code, reply.data) == (200, b"")
        assert site.called == []
        for missing in PREFLIGHT:
            headers = {name: value for name, value in PREFLIGHT.items() if name != missing}
            assert site.client().options("/config", headers=headers).status_code == 401
        assert site.client().get("/config", headers=PREFLIGHT).status_code == 401

    def test_options_of_the_applications_own_are_a_view_like_others(self, site: Site) -> None:
        site.app.route("/config", methods=["OPTIONS"])(site.auth.require()(site.view()))
        assert site.client().options("/config", headers=PREFLIGHT).status_code == 401
        assert site.called == []


class TestClassBasedViews:
    def test_decorators_of_the_class(self, site: Site) -> None:
        class Config(MethodView):
            decorators = [site.auth.require_interactive("admin:config")]  # noqa: RUF012

            def get(self) -> str:
                return "got"

        site.app.add_url_rule("/config", view_func=Config.as_view("config"))
        for method in ("GET", "HEAD", "OPTIONS"):
            assert site.ask(method, "/config").status_code == 401
            assert site.ask(method, "/config", "key_admin").status_code == 403
            assert site.ask(method, "/config", "jwt_admin").status_code == 200

    def test_method_by_method(self, site: Site) -> None:
        class Tasks(MethodView):
            @site.auth.require("tasks:read")
            def get(self) -> str:
                return "got"

            @site.auth.require_interactive()
            def post(self) -> str:
                return "posted"

            @site.auth.public
            def put(self) -> str:
                return "put"

        site.app.add_url_rule("/", view_func=Tasks.as_view("tasks"))
        site.auth.protect(site.app)
        assert site.code("GET", "/") == "credentials_missing"
        assert site.ask("HEAD", "/").status_code == 401
        assert site.ask("HEAD", "/", "key").status_code == 200
        assert site.code("GET", "/", "key_nothing") == "permission_denied"
        assert site.code("POST", "/", "key") == "interactive_required"
        assert site.code("PUT", "/") == "200"
        # The answer is about all methods.
        assert site.code("OPTIONS", "/") == "credentials_missing"
        assert site.code("OPTIONS", "/", "key") == "interactive_required"
        assert site.code("OPTIONS", "/", "jwt") == "200"

    def test_a_method_that_declares_nothing_in_what_is_protected(self, site: Site) -> None:
        class Tasks(MethodView):
            @site.auth.require()
            def get(self) -> str:
                return "got"

            def delete(self) -> str:
                return "deleted"

        site.auth.protect(site.app)
        site.app.add_url_rule("/", view_func=Tasks.as_view("tasks"))
        with pytest.raises(ConfigurationError, match="'tasks' declares no policy for DELETE"):
            site.auth.check(site.app)
        assert site.ask("DELETE", "/", "jwt").status_code == 500

    def test_a_plain_view_class(self, site: Site) -> None:
        class Shown(View):
            @site.auth.require()
            def dispatch_request(self) -> str:
                return "shown"

        site.app.add_url_rule("/", view_func=Shown.as_view("shown"))
        site.auth.protect(site.app)
        assert site.code("GET", "/") == site.code("OPTIONS", "/") == "credentials_missing"
        assert site.ask("GET", "/", "key").data == b"shown"


class TestADecoratorOfTheApplication:
    """One that verified the tokens of the application before, and stays on its views."""

    @pytest.fixture
    def app(self, site: Site) -> Flask:
        auth = site.auth
        current_user = auth.user(lambda owner_id: f"the user {owner_id}")

        def login_required(view: Callable[[str], ResponseReturnValue]) -> Callable[[], Any]:
            def guarded() -> ResponseReturnValue:
                if auth.is_admitted:
                    return view(current_user())
                return view("found by its token") if "X-Token" in request.headers else ("", 401)

            guarded.__name__ = view.__name__
            return guarded

        reached = Blueprint("reached", __name__, url_prefix="/reached")
        auth.protect(reached, require("tasks:read"))

        @reached.get("/")
        @login_required
        def by_keys(user: str) -> ResponseReturnValue:
            return user

        @site.app.get("/own")
        @login_required
        def own(user: str) -> ResponseReturnValue:
            return user

        @site.app.get("/guarded")
        @auth.require("tasks:run")
        @login_required
        def guarded(user: str) -> ResponseReturnValue:
            return user

        @site.app.errorhandler(Problem)
        def on_problem(error: Problem) -> ResponseReturnValue:
            return f"admitted: {auth.is_admitted}", error.status

        site.app.register_blueprint(reached)
        return site.app

    @pytest.mark.usefixtures("app")
    def test_it_takes_whom_a_guard_has_admitted(self, site: Site) -> None:
        for path in ("/reached/", "/guarded"):
            assert site.ask("GET", path, "key").text == "the user alice"
            assert site.ask("GET", path, "jwt").text == "the user alice"

    @pytest.mark.usefixtures("app")
    def test_it_knows_no_keys_where_no_guard_stands(self, site: Site) -> None:
        for credential in ("key", "jwt", None):
            assert site.ask("GET", "/own", credential).status_code == 401
        assert site.ask("GET", "/own", X_Token="7").text == "found by its token"

    @pytest.mark.usefixtures("app")
    def test_whoever_is_refused_is_not_admitted(self, site: Site) -> None:
        for path, credential, status in (
            ("/guarded", "key_read", 403),
            ("/guarded", None, 401),
            ("/reached/", "key_revoked", 401),
        ):
            reply = site.ask("GET", path, credential, X_Token="7")
            assert (reply.status_code, reply.text) == (status, "admitted: False")


class TestAProtectedBlueprint:
    @pytest.fixture
    def blueprint(self, tmp_path: Path) -> Blueprint:
        folder = tmp_path / "static"
        folder.mkdir()
        folder.joinpath("secret.txt").write_text("in a file")
        return Blueprint("admin", __name__, url_prefix="/admin", static_folder=str(folder))

    def test_every_view_demands_its_policy(self, site: Site, blueprint: Blueprint) -> None:
        site.auth.protect(blueprint, require_interactive("admin:config"))
        blueprint.route("/config", methods=["GET", "PATCH"])(site.view("config"))
        inner = Blueprint("inner", __name__, url_prefix="/inner")
        inner.get("/view")(site.view("inner"))
        blueprint.register_blueprint(inner)
        site.app.register_blueprint(blueprint)
        for path in ("/admin/config", "/admin/inner/view", "/admin/static/secret.txt"):
            for method in ("GET", "HEAD", "OPTIONS"):
                assert site.ask(method, path).status_code == 401
                assert site.ask(method, path, "key_admin").status_code == 403
                assert site.ask(method, path, "jwt_admin").status_code == 200
        assert site.code("PATCH", "/admin/config", "key_admin") == "interactive_required"
        assert site.called.count("config") == site.called.count("inner") == 2
        # What is not there needs no guard.
        assert site.code("GET", "/admin/nowhere") == "404"

    def test_unsafe_methods_demand_a_policy_of_their_own(self, site: Site) -> None:
        blueprint = Blueprint("tasks", __name__, url_prefix="/tasks")
        site.auth.protect(blueprint, require("tasks:read"), unsafe=require_interactive("tasks:run"))
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"]
        blueprint.route("/", methods=methods)(site.view("tasks"))
        blueprint.post("/import")(site.auth.require("tasks:import")(site.view("import")))
        site.app.register_blueprint(blueprint)
        for method in ("GET", "HEAD", "OPTIONS"):
            assert site.ask(method, "/tasks/", "key_read").status_code == 200
        for method in methods[1:]:
            assert site.code(method, "/tasks/") == "credentials_missing"
            assert site.code(method, "/tasks/", "key") == "interactive_required"
            assert site.code(method, "/tasks/", "jwt") == "200"
        # Alice may not do what the view itself demands.
        assert site.code("POST", "/tasks/import", "jwt") == "permission_denied"

    def test_views_may_have_to_declare_what_is_safe_alone(self, site: Site) -> None:
        blueprint = Blueprint("tasks", __name__)
        site.auth.protect(blueprint, unsafe=require("tasks:run"))
        blueprint.route("/", methods=["POST"], provide_automatic_options=False)(site.view("run"))
        blueprint.get("/open")(site.view("open"))
        site.app.register_blueprint(blueprint)
        with pytest.raises(ConfigurationError, match=r"'tasks\.open' declares no policy for GET"):
            site.auth.check(site.app)

    def test_what_a_view_declares_comes_on_top(self, site: Site, blueprint: Blueprint) -> None:
        site.auth.protect(blueprint, require_interactive())
        blueprint.get("/tasks")(site.auth.require("tasks:run")(site.view()))
        site.app.register_blueprint(blueprint)
        assert site.code("GET", "/admin/tasks", "key") == "interactive_required"
        assert site.code("GET", "/admin/tasks", "jwt_bob") == "permission_denied"
        assert site.code("GET", "/admin/tasks", "jwt") == "200"

    def test_a_public_view_is_exempt(self, site: Site, blueprint: Blueprint) -> None:
        site.auth.protect(blueprint, require())
        blueprint.get("/health")(site.auth.public(site.view()))
        site.app.register_blueprint(blueprint)
        assert site.code("GET", "/admin/health") == "200"
        assert site.code("GET", "/admin/health", "key_revoked") == "200"

    def test_under_two_names(self, site: Site) -> None:
        blueprint = Blueprint("b", __name__)
        site.auth.protect(blueprint, require())
        blueprint.get("/view")(site.view())
        site.app.register_blueprint(blueprint, url_prefix="/one", name="one")
        site.app.register_blueprint(blueprint, url_prefix="/two", name="two")
        assert site.code("GET", "/one/view") == site.code("GET", "/two/view")
        assert site.code("GET", "/two/view") == "credentials_missing"

    def test_a_whole_application(self, site: Site) -> None:
        site.app = Flask(__name__)
        site.auth.init_app(site.app)
        site.app.get("/view")(site.view())
        site.app.register_blueprint(site.auth.key_routes())
        site.auth.protect(site.app, require("tasks:run"))
        assert site.code("GET", "/view") == "credentials_missing"
        assert site.code("GET", "/static/x") == "credentials_missing"
        assert site.code("GET", "/api/keys", "key_read") == "permission_denied"
        assert site.code("GET", "/view", "key") == "200"
        assert site.code("GET", "/nowhere") == "404"

    def test_an_application_that_was_not_prepared(self, site: Site) -> None:
        with pytest.raises(ConfigurationError, match=r"init_app\(app\) before"):
            site.auth.protect(Flask(__name__), require())


class TestChangesWhileItRuns:
    """What a view demands is read once, and again as soon as anything about it is another."""

    def test_another_view_under_the_same_endpoint(self, site: Site) -> None:
        site.app.get("/")(site.auth.require()(site.view()))
        assert site.code("GET", "/", "key") == "200"
        site.app.view_functions["view"] = site.auth.require_interactive()(site.view("other"))
        assert site.code("GET", "/", "key") == "interactive_required"
        site.app.view_functions["view"] = site.auth.public(site.view("third"))
        assert site.code("GET", "/") == "200"
        assert site.called == ["view", "third"]

    def test_a_scope_that_is_protected_later(self, site: Site) -> None:
        blueprint = Blueprint("things", __name__)
        blueprint.get("/things")(site.auth.require()(site.view()))
        site.app.register_blueprint(blueprint)
        assert site.code("GET", "/things", "key") == "200"
        site.auth.protect(site.app, require_interactive())
        assert site.code("GET", "/things", "key") == "interactive_required"


class TestSetUpsThatCannotWork:
    def test_an_async_authenticator(self) -> None:
        async def find_owner(_: str) -> None: ...

        waiting: Any = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner)
        with pytest.raises(ConfigurationError, match=r"Write Authenticator\("):
            FlaskAuth(waiting)

    def test_a_guard_on_an_application_without_the_adapter(self, site: Site) -> None:
        bare = Flask(__name__)
        bare.testing = True
        bare.get("/view")(site.auth.require()(site.view()))
        bare.register_blueprint(site.auth.key_routes())
        for path in ("/view", "/api/keys"):
            with pytest.raises(ConfigurationError, match=r"Call auth\.init_app\(app\)"):
                bare.test_client().get(path)
        assert site.called == []

    def test_the_principal_of_a_view_without_a_guard(self, site: Site) -> None:
        site.app.testing = True
        site.app.get("/")(lambda: site.auth.current_principal.owner.id)
        with pytest.raises(ConfigurationError, match="on a route without a guard"):
            site.ask("GET", "/", "jwt")


class TestThePrincipal:
    def test_a_policy_decided_while_it_runs(self, site: Site) -> None:
        @site.app.get("/<permission>")
        def view(permission: str) -> str:
            return site.auth.admit(Policy(frozenset({permission}))).user.name

        assert site.code("GET", "/tasks:read") == "credentials_missing"
        assert site.code("GET", "/tasks:write", "key") == "permission_denied"
        assert site.ask("GET", "/tasks:read", "key").data == b"Alice"

    def test_it_does_not_outlive_its_request(self, site: Site) -> None:
        """An application context that the application pushed is shared by the requests in it, and so is `g`."""
        site.app.get("/")(site.auth.require()(lambda: str(dict(g.__dict__))))
        with site.app.app_context():
            assert site.code("GET", "/", "jwt") == "200"
            assert site.code("GET", "/") == "credentials_missing"
            assert not [name for name in vars(g) if "msk" in name]

    def test_applications_side_by_side_have_users_of_their_own(self, site: Site) -> None:
        """One calls the other with the same environment."""
        other = Site(make_world())
        for each in (site, other):
            each.app.get("/")(
                each.auth.require()(lambda auth=each.auth: auth.current_principal.user.name)
            )
        combined = Client(DispatcherMiddleware(site.app, {"/other": other.app}))
        key = f"Bearer {site.world.names['key']}"
        assert combined.get("/", headers={"Authorization": key}).status_code == 200
        # A key of one is unknown to the other, also when the first has let the request in already.
        with site.app.test_request_context(headers={"Authorization": key}) as context:
            assert site.auth.admit(Policy()).owner.id == "alice"
        environ = {name: each for name, each in context.request.environ.items() if "msk" in name}
        environ["HTTP_AUTHORIZATION"] = key
        with pytest.raises(ConfigurationError, match="without a guard"):
            known_principal(environ, other.auth.authenticator)
        reply = combined.get("/other/", environ_overrides=environ)
        assert (reply.status_code, reply.json["code"]) == (401, "key_unknown")

    def test_changed_headers_are_verified_anew(self, site: Site) -> None:
        names = site.world.names
        with site.app.test_request_context() as context:
            environ = context.request.environ
            environ["HTTP_AUTHORIZATION"] = f"Bearer {names['key']}"
            assert site.auth.admit(Policy()).owner.id == "alice"
            environ["HTTP_AUTHORIZATION"] = f"Bearer {names['key_bob']}"
            assert site.auth.admit(Policy()).owner.id == "bob"
            del environ["HTTP_AUTHORIZATION"]
            with pytest.raises(CredentialsMissing):
                site.auth.admit(Policy())

    def test_an_async_view(self, site: Site) -> None:
        @site.app.get("/")
        @site.auth.require("tasks:read")
        async def view() -> str:
            await checkpoint()
            return site.auth.current_principal.user.name

        assert site.code("GET", "/") == "credentials_missing"
        assert site.ask("GET", "/", "key").data == b"Alice"

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_guard_below_another_decorator_still_decides(
        self, site: Site, is_async: bool
    ) -> None:
        def plain() -> str:
            return "reached"

        async def waiting() -> str:
            return "reached"

        view: Any = site.auth.require("tasks:run")(waiting if is_async else plain)

        @site.app.get("/")
        def hidden() -> ResponseReturnValue:
            return site.app.ensure_sync(view)()

        assert site.code("GET", "/") == "credentials_missing"
        assert site.code("GET", "/", "key_bob") == "permission_denied"
        assert site.ask("GET", "/", "key").data == b"reached"

    def test_it_runs_before_everything_of_the_application(self, site: Site) -> None:
        early = Flask(__name__)

        @early.before_request
        def before() -> None:
            site.called.append("before")

        FlaskAuth(site.auth.authenticator, early)
        auth = early.extensions["msk_auth"]
        early.get("/")(auth.require()(site.view()))
        assert early.test_client().get("/").status_code == 401
        assert site.called == []


class TestKeyRoutes:
    def test_they_cannot_be_mounted_unguarded(self, site: Site) -> None:
        site.app.register_blueprint(site.auth.key_routes())
        routes = [rule for rule in site.app.url_map.iter_rules() if "api_keys." in rule.endpoint]
        assert len(routes) == 7
        for rule in routes:
            values = dict.fromkeys(rule.arguments, "AAAAAAAAAAAA")
            # Even when something calls the view that is not Flask.
            view = site.app.view_functions[rule.endpoint]
            with site.app.test_request_context():
                assert view(**values).status_code == 401
            path = str(rule).replace("<key_id>", "AAAAAAAAAAAA")
            for method in rule.methods or ():
                assert site.ask(method, path).status_code == 401

    def test_by_name_and_in_two_places(self, site: Site) -> None:
        site.app.register_blueprint(site.auth.key_routes())
        site.app.register_blueprint(site.auth.key_routes(url_prefix="/v2/<team>/keys"), name="v2")
        with site.app.test_request_context():
            assert url_for("api_keys.list_keys") == "/api/keys"
        bearer = {"Authorization": f"Bearer {site.world.names['jwt']}"}
        site.app.view_functions["v2.create_key"] = _without_team(site, "v2.create_key")
        created = site.client().post("/v2/red%20team/keys", json={"name": "a"}, headers=bearer)
        assert created.status_code == 201
        assert created.headers["Location"] == f"/v2/red%20team/keys/{created.json['id']}"

    def test_a_body_without_a_length(self, site: Site) -> None:
        # WSGI does not define chunked bodies; werkzeug reads none unless the server promises an end.
        site.app.register_blueprint(site.auth.key_routes())
        bearer = {"Authorization": f"Bearer {site.world.names['jwt']}"}
        reply = site.client().post(
            "/api/keys",
            headers=bearer,
            environ_overrides={"CONTENT_LENGTH": "", "CONTENT_TYPE": "application/json"},
        )
        assert (reply.status_code, reply.json["code"]) == (422, "input_invalid")

    @pytest.mark.parametrize(
        ("announced", "sent", "status"),
        [
            (16, '{"name":    "a"}', 201),
            (17, '{"name":    "a"}', 400),
            (500, '{"name":    "a"}', 400),
            (500, "", 400),
            # More than a body may have, and no more than that is read of one.
            (10**9, '{"name":    "a"}', 400),
            (10**9, " " * 10**6, 413),
        ],
        ids=lambda value: str(value)[:10].strip() or "blank",
    )
    def test_a_body_that_a_server_hands_on_cut_off_is_malformed(
        self, site: Site, announced: int, sent: str, status: int
    ) -> None:
        """gunicorn and granian end the stream where the client hung up, and say that they limit it themselves."""
        site.app.register_blueprint(site.auth.key_routes())
        reply = site.client().post(
            "/api/keys",
            data=sent,
            content_type="application/json",
            headers={"Authorization": f"Bearer {site.world.names['jwt']}"},
            environ_overrides={"CONTENT_LENGTH": str(announced), "wsgi.input_terminated": True},
        )
        assert reply.status_code == status
        if status == 400:
            assert reply.json["code"] == "request_malformed"

    @pytest.mark.skipif(OLD_WERKZEUG, reason="limits forms alone")
    def test_a_limit_of_the_applications_own(self, site: Site) -> None:
        site.app.config["MAX_CONTENT_LENGTH"] = 10
        site.app.register_blueprint(site.auth.key_routes())
        bearer = {"Authorization": f"Bearer {site.world.names['jwt']}"}
        reply = site.client().post("/api/keys", json={"name": "a" * 10}, headers=bearer)
        assert (reply.status_code, reply.json["title"]) == (413, "Content Too Large")


def _without_team(site: Site, endpoint: str) -> Callable[..., Any]:
    view = site.app.view_functions[endpoint]
    return lambda **_: view()


def _busy() -> ResponseReturnValue:
    raise TooManyRequests(retry_after=7)


class TestErrors:
    """Whatever goes wrong is a problem document, and keeps the headers that help the client (RFC 9457)."""

    def answer(self, site: Site, error: Callable[[], ResponseReturnValue]) -> TestResponse:
        site.app.get("/")(error)
        reply = site.ask("GET", "/")
        if reply.status_code >= 400:
            assert reply.content_type == "application/problem+json"
            assert reply.headers["Cache-Control"] == "no-store"
            assert reply.json["status"] == reply.status_code
        return reply

    @pytest.mark.parametrize(
        ("raised", "status", "detail"),
        [
            (lambda: abort(404), 404, None),
            (lambda: abort(404, "No such task."), 404, "No such task."),
            (lambda: abort(403), 403, None),
            (lambda: abort(401), 401, None),
            (lambda: abort(500), 500, None),
            (lambda: abort(418), 418, None),
            (lambda: request.get_json(), *NO_JSON),  # noqa: PLW0108 - a proxy
            (lambda: request.form["x"], 400, None),
            (_busy, 429, None),
        ],
    )
    def test_of_the_framework(
        self, site: Site, raised: Callable[[], Any], status: int, detail: str | None
    ) -> None:
        reply = self.answer(site, raised)
        assert reply.status_code == status
        assert reply.json["type"] == "about:blank"
        assert "code" not in reply.json
        assert reply.json.get("detail", "").startswith(detail or "")
        assert ("detail" in reply.json) == (detail is not None)
        assert "WWW-Authenticate" not in reply.headers
        assert reply.headers.get("Retry-After") == ("7" if status == 429 else None)

    def test_challenges_of_the_application_are_its_own(self, site: Site) -> None:
        def refused() -> ResponseReturnValue:
            challenges = [WWWAuthenticate(name, {"realm": "a b"}) for name in ("one", "two")]
            raise Unauthorized(www_authenticate=challenges)

        headers = self.answer(site, refused).headers
        assert headers.getlist("WWW-Authenticate") == ['One realm="a b"', 'Two realm="a b"']

    def test_an_answer_of_the_applications_own_is_left_alone(self, site: Site) -> None:
        assert self.answer(site, lambda: abort(Response("mine", 200))).data == b"mine"

        def gone() -> ResponseReturnValue:
            raise NotFound(response=Response("mine", 410, content_type="text/plain"))

        site.app = Flask(__name__)
        site.auth.init_app(site.app)
        site.app.get("/")(gone)
        reply = site.ask("GET", "/")
        assert (reply.status_code, reply.data) == (410, b"mine")

    def test_what_is_no_error_is_left_alone(self, site: Site) -> None:
        class SeeOther(HTTPException):
            code = 303

        def elsewhere() -> ResponseReturnValue:
            raise SeeOther

        assert self.answer(site, elsewhere).status_code == 303
        site.app = Flask(__name__)
        site.auth.init_app(site.app)
        site.app.get("/")(lambda: redirect("/there"))
        assert site.ask("GET", "/").status_code == 302

    def test_handlers_of_the_application_come_first(self, site: Site) -> None:
        app = Flask(__name__)
        app.register_error_handler(Problem, lambda error: (error.code, 499))
        app.register_error_handler(HTTPException, lambda _: ("http", 498))
        site.auth.init_app(app)
        app.get("/")(site.auth.require()(site.view()))
        client = app.test_client()
        assert (client.get("/").status_code, client.get("/").data) == (499, b"credentials_missing")
        assert client.get("/nowhere").data == b"http"

    def test_and_so_do_later_ones(self, site: Site) -> None:
        site.app.register_error_handler(404, lambda _: ("mine", 404))
        assert site.ask("GET", "/nowhere").data == b"mine"

    def test_a_blueprint_may_answer_what_a_guard_refuses(self, site: Site) -> None:
        blueprint = Blueprint("inner", __name__)
        blueprint.register_error_handler(CredentialsMissing, lambda error: (error.code, 497))
        blueprint.get("/")(site.auth.require()(site.view()))
        site.app.register_blueprint(blueprint)
        refused = site.ask("GET", "/")
        assert (refused.status_code, refused.data) == (497, b"credentials_missing")

    def test_an_extension_that_handles_every_error_gets_no_refusals(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Exception] = []
        handle = site.app.handle_user_exception

        def look(error: Exception) -> Any:
            seen.append(error)
            return handle(error)

        monkeypatch.setattr(site.app, "handle_user_exception", look)
        site.app.get("/")(site.auth.require()(site.view()))
        site.app.get("/own")(lambda: abort(418))
        assert site.code("GET", "/") == "credentials_missing"
        assert site.ask("GET", "/own").status_code == 418
        assert [type(error) for error in seen] == [ImATeapot]

    def test_a_refusal_takes_the_same_way_out_as_an_answer(self, site: Site) -> None:
        @site.app.after_request
        def mark(response: Response) -> Response:
            response.headers["x-seen"] = "yes"
            return response

        site.app.get("/")(site.auth.require()(site.view()))
        refused = site.ask("GET", "/")
        assert (refused.status_code, refused.headers["x-seen"]) == (401, "yes")
        assert refused.headers["content-length"] == str(len(refused.data))


class TestTimesOfLastUse:
    @pytest.fixture
    def at_exit(self, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
        """What would run when the process ends."""
        calls: list[Callable[[], None]] = []
        monkeypatch.setattr(
            flask.atexit, "register", lambda call, *args: calls.append(lambda: call(*args))
        )
        return calls

    def last_used(self, site: Site) -> datetime | None:
        record = site.world.store.blocking.find(site.world.names["key_id"])
        assert record is not None
        return record.last_used_at

    def test_are_written_after_a_response_at_most_once_a_minute(self, site: Site) -> None:
        site.app.get("/")(site.auth.require()(site.view()))
        bearer = {"Authorization": f"Bearer {site.world.names['key']}"}
        site.client().get("/", headers=bearer).close()
        assert self.last_used(site) is None
        site.world.clock.advance(timedelta(seconds=60))
        reply = site.client().get("/", headers=bearer)
        # No caller waits for it.
        assert self.last_used(site) is None
        reply.close()
        assert self.last_used(site) == START + timedelta(seconds=60)

    def test_are_written_in_a_context_of_the_application(
        self, world: World, at_exit: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a store needs it that is made with `lambda: db.engine` of Flask-SQLAlchemy."""
        written: list[str] = []

        def touch(_last_used: Any) -> None:
            written.append(current_app.name)

        monkeypatch.setattr(world.store.blocking, "touch", touch)
        site = Site(world)
        site.app.get("/")(site.auth.require()(site.view()))
        bearer = {"Authorization": f"Bearer {site.world.names['key']}"}
        site.client().get("/", headers=bearer).close()
        site.world.clock.advance(timedelta(seconds=60))
        site.client().get("/", headers=bearer).close()
        assert written == [site.app.name]
        # The rest is written when the process ends.
        site.ask("GET", "/", "key")
        (leave,) = at_exit
        leave()
        assert written == [site.app.name] * 2

    def test_an_application_that_is_gone_is_not_kept_for_it(
        self, at_exit: list[Callable[[], None]]
    ) -> None:
        app: Flask | None = Flask(__name__)
        auth: FlaskAuth[Any] | None = FlaskAuth(make_world().blocking, app)
        gone = (weakref.ref(app), weakref.ref(auth.authenticator))
        del app, auth
        gc.collect()
        assert [each() for each in gone] == [None, None]
        (leave,) = at_exit
        leave()
