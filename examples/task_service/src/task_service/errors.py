"""The service's own problems, subclasses of the library's errors and rendered like them."""

from collections.abc import Mapping

from msk_auth.errors import NotFound, Problem


class PageNotFound(NotFound):
    """Nothing has this address."""

    title = "Page not found"
    default_detail = "Nothing has this address. Check it, or go on from the list of tasks."


class TaskNotFound(NotFound):
    """No such task, or not visible to the principal."""

    code = "task_not_found"
    title = "The task was not found"
    default_detail = "You have no task with this id."


class RunNotFound(NotFound):
    """No such run, or not visible to the principal."""

    code = "run_not_found"
    title = "The run was not found"
    default_detail = "You have no run with this id."


class UserNotFound(NotFound):
    """No such user."""

    code = "user_not_found"
    title = "The user was not found"
    default_detail = "There is no user with this id."


class ServiceAccountNotFound(NotFound):
    """No such service account, or it was deleted."""

    code = "service_account_not_found"
    title = "The service account was not found"
    default_detail = "There is no service account with this id."


class SessionNotFound(NotFound):
    """No such open session of this user."""

    code = "session_not_found"
    title = "The session was not found"
    default_detail = "You have no open session with this id."


class LoginFailed(Problem):
    """The same answer for an unknown user, a wrong password, and accounts that are disabled or have no password."""

    status = 401
    code = "login_failed"
    title = "The login failed"
    default_detail = "The user name or the password is wrong."

    def challenge(self) -> dict[str, str]:
        """RFC 9110 requires a challenge with every 401; this one has no parameters."""
        return {}


class PasswordLoginOff(Problem):
    """The operator has switched off the service's own passwords; people log in at the identity provider."""

    status = 403
    code = "password_login_off"
    title = "Passwords are switched off"
    default_detail = "This service has no passwords of its own. Log in at the identity provider."


class ProviderLoginRefused(Problem):
    """The service does not accept this login at the identity provider."""

    status = 403
    code = "provider_login_refused"
    title = "The login was refused"
    default_detail = "This login at the identity provider was not accepted. Log in again."


class ProviderUnavailable(Problem):
    """The identity provider does not answer, or violates OpenID Connect."""

    status = 503
    code = "provider_unavailable"
    title = "The identity provider does not answer"
    default_detail = "The identity provider cannot be reached. Try again in a moment."


class LogoutRefused(Problem):
    """The service refuses a logout from the identity provider."""

    status = 400
    code = "logout_refused"
    title = "The logout was refused"
    default_detail = "The logout token is not valid."

    def members(self) -> Mapping[str, object]:
        """The code for every failure in OpenID Connect Back-Channel Logout 1.0, section 2.8."""
        return {"error": "invalid_request"}


class LinkInvalid(Problem):
    """A one-time link that is unknown, used or expired."""

    status = 410
    code = "link_invalid"
    title = "The link is no longer valid"
    default_detail = (
        "This link was used already or has expired. Get a new one from an administrator."
    )


class UsernameTaken(Problem):
    """A user or a service account has this name."""

    status = 409
    code = "username_taken"
    title = "The user name is taken"
    default_detail = "A user or a service account already has this name. Choose another name."


class LastAdministrator(Problem):
    """After the change no administrator could log in with the present settings."""

    status = 409
    code = "last_administrator"
    title = "This is the last administrator"
    default_detail = "No other administrator can log in. Make another user an administrator first."


class RunNotCancellable(Problem):
    """The run is already over."""

    status = 409
    code = "run_finished"
    title = "The run is over"
    default_detail = "This run has already finished, so it cannot be cancelled."


class TaskOwnerDisabled(Problem):
    """A run acts for the owner of its task, who is disabled."""

    status = 409
    code = "task_owner_disabled"
    title = "The owner of the task is disabled"
    default_detail = (
        "The owner of this task is disabled, so it cannot be run. Hand it to another owner first."
    )


class RunQueueFull(Problem):
    """The user has reached the limit of queued runs, until some have started."""

    status = 429
    code = "run_queue_full"
    title = "Too many runs are waiting"
    default_detail = "You have too many queued runs. Retry when some of them have started."
    retry_after = 30


class TooManyRequests(Problem):
    """The user has reached the limit of concurrent requests (RFC 6585, section 4)."""

    status = 429
    code = "too_many_requests"
    title = "Too many requests at once"
    default_detail = (
        "You have too many concurrent requests. Finish or close some of them, or retry later."
    )
    retry_after = 5


class IdempotencyConflict(Problem):
    """The same Idempotency-Key was used for another task (draft-ietf-httpapi-idempotency-key-header)."""

    status = 422
    code = "idempotency_key_reused"
    title = "The Idempotency-Key was used for something else"
    default_detail = "This Idempotency-Key was used to run another task. Use a fresh one."


class BodyTooLarge(Problem):
    """The body is larger than the service reads."""

    status = 413
    code = "content_too_large"
    title = "The request body is too large"
    default_detail = "The request body is larger than 1 MiB. Send a smaller body."


class LengthRequired(Problem):
    """The request does not state the length of its body (RFC 9110, section 15.5.12)."""

    status = 411
    code = "length_required"
    title = "The length of the body is missing"
    default_detail = "Send the body with a Content-Length, not in chunks."


class MisdirectedRequest(Problem):
    """The request names a host that is not this service (RFC 9110, section 15.5.20)."""

    status = 421
    code = "misdirected_request"
    title = "The request is meant for another host"
    default_detail = (
        "This host is not the service's. Use the address that it printed when it started."
    )


class MethodNotAllowed(Problem):
    """The path exists, but not for this method (RFC 9110, section 15.5.6)."""

    status = 405
    code = "method_not_allowed"
    title = "The method is not allowed"
    default_detail = "This path does not allow the method. Use a method from the header 'Allow'."


class InternalError(Problem):
    """A fault of the service. The log has the details, under the request's id."""

    status = 500
    code = "internal_error"
    title = "Internal error"
    default_detail = "The service failed. The administrator finds the error in the log by this response's X-Request-Id."
