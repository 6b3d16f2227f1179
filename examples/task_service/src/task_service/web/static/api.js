// The JSON API, and the handling of logins that have ended or are too old.

/** Any answer but success, in words (RFC 9457); `fields` are `{field, message}`. */
export class Problem extends Error {
  constructor(status, said) {
    super(said?.detail ?? `The service answered with status ${status}.`);
    this.fields = said?.errors ?? [];
    this.code = said?.code;
    /** True if the service may have carried out the request. */
    this.unanswered = status === 0 || status >= 500;
  }

  static ofField(field, message) {
    return new Problem(422, { errors: [{ field, message }] });
  }
}

/** Called before the browser goes to the log-in page, to keep forms as drafts. */
export const beforeLogin = new Set();

/** The lock of any tab that replaces its login. */
export const LOGIN = "login";

/** Calls `listener(true or false)` when the service answers again, or stops answering. */
export const onReach = (listener) => document.addEventListener("reach", ({ detail }) => listener(detail));

const reached = (yes) => document.dispatchEvent(new CustomEvent("reach", { detail: yes }));

// A proxy's answers for an absent service.
const AWAY = new Set([502, 504]);

export async function api(path, { method = "GET", body, headers, raw = false, loggedIn = true, again = loggedIn } = {}) {
  let answer, text;
  try {
    answer = await fetch(`/api${path}`, {
      method,
      headers: { Accept: "application/json", ...(body && { "Content-Type": "application/json" }), ...headers },
      body: body && JSON.stringify(body),
      cache: "no-store",
    });
    text = await answer.text();
  } catch {
    reached(false);
    throw new Problem(0, { detail: "The service cannot be reached. Check the connection and try again." });
  }
  reached(!AWAY.has(answer.status));
  if (answer.ok && raw) return text;
  const said = parsed(text);
  if (answer.ok) return said;
  const problem = new Problem(answer.status, said);
  const tooOld = problem.code === "login_too_old";
  if (answer.status !== 401 || !loggedIn || (tooOld && !again)) throw problem;
  if (again) {
    // Nothing was carried out. Another tab may have replaced the login.
    if (tooOld) await (await import("./reauthenticate.js")).reauthenticate();
    else await navigator.locks.request(LOGIN, { mode: "shared" }, () => {});
    return api(path, { method, body, headers, raw, again: false });
  }
  for (const act of beforeLogin) act();
  location.assign(`/login?${new URLSearchParams({ next: location.pathname + location.search, reason: "session-ended" })}`);
  // The page is being left.
  return new Promise(() => {});
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : undefined;
  } catch {
    // A proxy's error page: the status says enough.
    return undefined;
  }
}
