"""Service accounts, for administrators. Their keys have the routes under `/api/keys`, with the parameter `on_behalf_of`."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Response
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from msk_auth import Principal, require_interactive
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.roles import MANAGE_USERS, RECENT_LOGIN
from task_service.accounts.service_accounts import ServiceAccount, ServiceAccounts
from task_service.accounts.users import SERVICE_ACCOUNT, AccountQuery, User
from task_service.db.paging import Page
from task_service.errors import ServiceAccountNotFound, UsernameTaken

from .json_route import JsonBody, JsonRoute, NewName, WantedPage
from .openapi import path_id, problems

PREFIX: Final = "/api/admin/service-accounts"

_RECENT: Final = require_interactive(MANAGE_USERS, max_age=RECENT_LOGIN)

AccountId = Annotated[str, path_id("accountId", SERVICE_ACCOUNT, "service account")]


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("Write visible characters, on one line.")
    return text


Description = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=500),
    AfterValidator(_one_line),
    Field(json_schema_extra={"pattern": r"^\s*[^\x00-\x1f\x7f-\x9f]*\s*$"}),
]


class NewServiceAccount(JsonBody):
    """The body of `POST /api/admin/service-accounts`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "deploy-bot", "description": "Deploys from the pipeline"}]
        }
    )

    name: NewName
    description: Description | None = None


class ServiceAccountChanges(JsonBody):
    """The body of `PATCH /api/admin/service-accounts/{accountId}`: missing members stay unchanged, null removes a description."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"disabled": True}]})

    description: Description | None = None
    disabled: bool | None = None


def service_accounts_router(auth: FastAPIAuth[User], accounts: ServiceAccounts) -> APIRouter:
    """The routes under `/api/admin/service-accounts`.

    Args:
        auth: Guards the routes.
        accounts: The service accounts.
    """
    router = APIRouter(prefix=PREFIX, tags=["Service accounts"], route_class=JsonRoute)
    administrator = auth.require_interactive(MANAGE_USERS)
    recent_administrator = auth.require_interactive(MANAGE_USERS, max_age=RECENT_LOGIN)

    @router.get("", dependencies=[administrator])
    async def list_service_accounts(
        page: WantedPage, query: Annotated[AccountQuery, Depends()]
    ) -> Page[ServiceAccount]:
        """List service accounts, by name.

        `search` is a part of a name, or an id. With `count` the answer has the number of all accounts found.
        """
        return await accounts.list(query, page)

    @router.post(
        "",
        status_code=201,
        responses=problems(UsernameTaken),
    )
    async def create_service_account(
        principal: Annotated[Principal[User], recent_administrator],
        new: NewServiceAccount,
        response: Response,
    ) -> ServiceAccount:
        """Create a service account.

        A service account owns keys, tasks and runs like a user, but never logs in. Make its keys with
        `POST /api/keys?on_behalf_of={accountId}`. This needs a login of the last 15 minutes.
        """
        account = await accounts.create(new.name, new.description, by=principal)
        response.headers["location"] = f"{PREFIX}/{account.id}"
        return account

    @router.get(
        "/{accountId}",
        dependencies=[administrator],
        responses=problems(ServiceAccountNotFound),
    )
    async def get_service_account(account_id: AccountId) -> ServiceAccount:
        """Show a service account."""
        return await accounts.get(account_id)

    @router.patch(
        "/{accountId}",
        responses=problems(ServiceAccountNotFound),
    )
    async def change_service_account(
        principal: Annotated[Principal[User], administrator],
        account_id: AccountId,
        changes: ServiceAccountChanges,
    ) -> ServiceAccount:
        """Change a service account's description, or disable or enable the account.

        After the answer the keys of a disabled account are refused and its runs have ended. Enabling needs a login of the
        last 15 minutes.
        """
        if changes.disabled is False:
            auth.authenticator.authorize(principal, _RECENT)
        described = "description" in changes.model_fields_set
        return await accounts.change(
            account_id,
            by=principal,
            description=(changes.description or "") if described else None,
            disabled=changes.disabled,
        )

    @router.delete("/{accountId}", status_code=204, responses=problems(ServiceAccountNotFound))
    async def delete_service_account(
        principal: Annotated[Principal[User], recent_administrator], account_id: AccountId
    ) -> None:
        """Delete a service account permanently.

        Its keys are revoked and its runs end. Its tasks, ended runs and audit entries stay. This needs a login of
        the last 15 minutes.
        """
        await accounts.delete(account_id, auth.authenticator, by=principal)

    return router
