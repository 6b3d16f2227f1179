"""The specification, section by section, as seen by its users: over HTTP, against the whole service.

Each test names the section and rule it shows. Where the specification says "not shown", nothing is shown here.
"""

from __future__ import annotations

import re

import pytest
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    Caller,
    Service,
    expect,
    problem,
    running_service,
    secrets_in,
    wrong_fields,
)

pytestmark = pytest.mark.anyio


class TestSection1WhatTheServiceDoes:
    """spec.md section 1"""

    async def test_a_task_can_be_run_immediately_through_the_api(self, user: Caller) -> None:
        task = await user.new_task()
        run = expect(await user.post(f"/api/tasks/{task['id']}/run"), 202)
        assert (await user.wait_for_run(run["id"]))["state"] == "succeeded"

    async def test_an_interactive_login_issues_a_jwt(self, service: Service) -> None:
        body = {"username": "ada", "password": ADMIN_PASSWORD}
        answered = expect(await service.caller().post("/api/auth/login", body), 200)
        assert answered["token_type"] == "Bearer"
        assert re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+", answered["access_token"])
        me = expect(await service.caller(answered["access_token"]).get("/api/auth/me"), 200)
        assert me["credential"]["kind"] == "interactive"

    async def test_users_create_list_and_revoke_keys_that_call_the_api_without_a_login(
        self, service: Service, user: Caller
    ) -> None:
        created = await user.new_key(name="CI")
        (listed,) = expect(await user.get("/api/keys"), 200)["items"]
        assert (listed["id"], listed["name"], listed["status"]) == (created["id"], "CI", "active")
        expect(await service.caller(created["key"]).get("/api/tasks"), 200)
        revoked = expect(await user.post(f"/api/keys/{created['id']}/revoke"), 200)
        assert revoked["status"] == "revoked"

    async def test_the_user_interface_has_an_api_keys_entry(
        self, service: Service, user: Caller
    ) -> None:
        page = await user.get("/keys")
        assert page.status_code == 200
        assert "API Keys" in page.text

    async def test_there_is_an_administrative_configuration_area(self, admin: Caller) -> None:
        config = expect(await admin.get("/api/admin/config"), 200)
        changed = expect(await admin.patch("/api/admin/config", {"max_keys_per_user": 3}), 200)
        assert changed == {**config, "max_keys_per_user": 3}


class TestSection2ApiKey:
    """spec.md section 2, "API key" """

    async def test_it_has_a_required_name_the_literal_prefix_and_its_creator_as_owner(
        self, user: Caller
    ) -> None:
        assert wrong_fields(await user.post("/api/keys", {})) == {"name"}
        created = await user.new_key()
        assert created["key"].startswith("msk_")
        me = await user.me()
        assert created["owner_id"] == me["user"]["id"]

    async def test_the_key_inherits_that_users_permissions(
        self, user: Caller, admin: Caller, user_key: Caller, admin_key: Caller
    ) -> None:
        for person, program in ((user, user_key), (admin, admin_key)):
            of_person = await person.me()
            of_program = await program.me()
            assert of_program["permissions"] == of_person["permissions"]
            assert of_program["user"] == of_person["user"]

    async def test_rule_1_the_value_is_shown_only_at_the_moment_of_creation(
        self, service: Service, user: Caller
    ) -> None:
        value = (created := await user.new_key())["key"]
        program = service.caller(value)
        expect(await program.get("/api/tasks"), 200)
        await service.services.authenticator.flush()
        for path in ("/api/keys", f"/api/keys/{created['id']}", "/api/auth/me", "/keys"):
            assert not secrets_in((await user.get(path)).text), path
        expect(await user.post(f"/api/keys/{created['id']}/revoke"), 200)
        assert not secrets_in((await user.get("/api/keys")).text)
        # Nor is it on the disk.
        files = [file for file in service.services.settings.data_dir.rglob("*") if file.is_file()]
        assert any(file.name.endswith("-wal") for file in files)
        secret = value.rsplit("_", 1)[1].encode()
        assert not [file.name for file in files if secret in file.read_bytes()]

    async def test_rule_2_a_lost_key_is_deleted_and_a_new_one_created(
        self, service: Service, user: Caller
    ) -> None:
        lost = await user.new_key(name="CI")
        assert (await user.delete(f"/api/keys/{lost['id']}")).status_code == 204
        found = await user.new_key(name="CI")
        assert found["key"] != lost["key"]
        assert [key["id"] for key in expect(await user.get("/api/keys"), 200)["items"]] == [
            found["id"]
        ]
        assert problem(await service.caller(lost["key"]).get("/api/tasks"))[0] == 401
        expect(await service.caller(found["key"]).get("/api/tasks"), 200)


class TestSection2Task:
    """spec.md section 2, "Task" """

    async def test_a_task_is_identified_in_paths(self, user: Caller) -> None:
        task = await user.new_task()
        assert expect(await user.get(f"/api/tasks/{task['id']}"), 200) == task


class TestSection3Lifecycle:
    """spec.md section 3, "API key lifecycle" """

    async def test_none_to_active_by_create_and_to_revoked_by_revoke_through_a_login_alone(
        self, service: Service, user: Caller
    ) -> None:
        created = await user.new_key()
        assert created["status"] == "active"
        program = service.caller(created["key"])
        expect(await program.get("/api/tasks"), 200)
        revoke = f"/api/keys/{created['id']}/revoke"
        for path, body in (("/api/keys", {"name": "more"}), (revoke, None)):
            refused = await program.post(path, body)
            assert problem(refused) == (403, "interactive_required")
            assert 'error="insufficient_user_authentication"' in refused.headers["www-authenticate"]
        (only,) = expect(await user.get("/api/keys"), 200)["items"]
        assert only["status"] == "active"
        expect(await user.post(revoke), 200)
        refused = await program.get("/api/tasks")
        assert problem(refused) == (401, "key_revoked")
        assert 'error="invalid_token"' in refused.headers["www-authenticate"]


class TestSection4Endpoints:
    """spec.md section 4"""

    async def test_get_tasks_without_a_body(self, user: Caller, user_key: Caller) -> None:
        task = await user.new_task()
        for caller in (user, user_key):
            answered = expect(await caller.get("/api/tasks"), 200)
            assert answered == {"items": [task], "next_cursor": None}

    async def test_post_run_without_a_body(self, user: Caller, user_key: Caller) -> None:
        task = await user.new_task()
        for caller in (user, user_key):
            response = await caller.post(f"/api/tasks/{task['id']}/run")
            run = expect(response, 202)
            assert run["task_id"] == task["id"]
            assert response.headers["location"] == f"/api/runs/{run['id']}"


class TestSection5Authentication:
    """spec.md section 5"""

    async def test_a_jwt_is_accepted_on_every_endpoint(self, admin: Caller) -> None:
        task = await admin.new_task()
        for path in ("/api/tasks", f"/api/tasks/{task['id']}", "/api/keys", "/api/admin/config"):
            expect(await admin.get(path), 200)

    async def test_rule_1_a_key_is_sent_as_a_bearer_token_and_in_no_other_place(
        self, service: Service, user: Caller
    ) -> None:
        value = (await user.new_key())["key"]
        caller = service.caller()
        headers = {"Authorization": f"Bearer {value}"}
        expect(await caller.get("/api/tasks", headers=headers), 200)
        for query, headers in (
            (f"?access_token={value}&api_key={value}", {}),
            ("", {"Cookie": f"__Host-task_session={value}; access_token={value}"}),
            ("", {"X-API-Key": value}),
            ("", {"Authorization": f"Token {value}"}),
        ):
            response = await caller.get(f"/api/tasks{query}", headers=headers)
            assert problem(response) == (401, "credentials_missing"), (query, headers)

    async def test_rule_2_a_key_acts_with_its_owners_permissions_on_the_same_endpoints(
        self, user: Caller, user_key: Caller, admin: Caller, admin_key: Caller
    ) -> None:
        task = await user.new_task()
        path = f"/api/tasks/{task['id']}"
        expect(await user_key.get(path), 200)
        expect(await user_key.patch(path, {"name": "renamed by a program"}), 200)
        # An administrator manages all tasks, and so does their key.
        expect(await admin_key.get(path), 200)
        expect(await admin_key.post(f"{path}/run"), 202)
        theirs = await admin.new_task()
        assert problem(await user_key.get(f"/api/tasks/{theirs['id']}")) == (404, "task_not_found")

    async def test_rule_3_no_key_changes_the_admin_configuration(
        self, admin: Caller, admin_key: Caller
    ) -> None:
        before = expect(await admin.get("/api/admin/config"), 200)
        body = {"max_keys_per_user": 1}
        for method in ("GET", "PATCH", "PUT", "POST", "DELETE", "OPTIONS"):
            response = await admin_key.request(method, "/api/admin/config", body)
            assert problem(response) == (403, "interactive_required"), method
        assert (await admin_key.request("HEAD", "/api/admin/config", body)).status_code == 403
        assert expect(await admin.get("/api/admin/config"), 200) == before

    async def test_rule_4_no_key_creates_or_revokes_keys_but_lists_them(
        self, service: Service, admin: Caller
    ) -> None:
        created = await admin.new_key()
        program = service.caller(created["key"])
        path = f"/api/keys/{created['id']}"
        for response in (
            await program.post("/api/keys", {"name": "more"}),
            await program.post(f"{path}/rotate"),
            await program.post(f"{path}/revoke"),
            await program.delete(path),
        ):
            assert problem(response) == (403, "interactive_required"), response.request.url
        for caller in (admin, program):
            (listed,) = expect(await caller.get("/api/keys"), 200)["items"]
            assert (listed["id"], listed["status"]) == (created["id"], "active")
            assert listed["replaced_by"] is None

    async def test_rule_5_a_revoked_key_is_rejected_from_the_moment_of_revocation(
        self, service: Service, user: Caller
    ) -> None:
        for _ in range(20):
            created = await user.new_key()
            program = service.caller(created["key"])
            expect(await program.get("/api/auth/me"), 200)
            expect(await user.post(f"/api/keys/{created['id']}/revoke"), 200)
            assert problem(await program.get("/api/auth/me")) == (401, "key_revoked")

    async def test_rule_5_holds_when_verifications_are_reused_for_a_moment(
        self, template, tmp_path
    ) -> None:
        async with running_service(template, tmp_path / "data", lease_ms=100) as service:
            ada = await service.log_in("ada", ADMIN_PASSWORD)
            for _ in range(3):
                created = await ada.new_key()
                program = service.caller(created["key"])
                expect(await program.get("/api/auth/me"), 200)
                expect(await ada.post(f"/api/keys/{created['id']}/revoke"), 200)
                assert problem(await program.get("/api/auth/me")) == (401, "key_revoked")


class TestSection9Versioning:
    """spec.md section 9"""

    async def test_the_paths_carry_the_prefix_api_and_no_version(self, service: Service) -> None:
        document = expect(await service.caller().get("/openapi.json"), 200)
        operational = {"/healthz", "/readyz", "/metrics"}
        paths = set(document["paths"]) - operational
        assert all(path.startswith("/api/") for path in paths)
        assert not [path for path in paths if re.search(r"/v\d", path)]
