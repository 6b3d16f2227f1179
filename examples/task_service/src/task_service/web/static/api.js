// The JSON API, and what happens when a login has ended or is not recent enough.

/** Any answer but success, in words (RFC 9457); `fields` are `{field, message}`. */
export class Problem extends Error {
  constructor(status, said) {
    super(said?.detail ?? `The service answered with status ${status}.`);
    this.fields = said?.errors ?? [];
    this.code = said?.code;
    /** True if the request may have been carried out all the same. */
    this.unanswered = status === 0 || status >= 500;
  }

  static ofField(field, message) {
    return new Problem(422, { errors: [{ field, message }] });
  }
}

/** Called before the page is left for the log-in, so that forms can be put away. */
export const beforeLogin = new Set();

/** The lock that is held while a new login takes the place of the old one, in whichever tab. */
export const LOGIN = "login";

/** Calls `listener(true or false)` when the service answers again, or stops answering. */
export const onReach = (listener) => document.addEventListener("reach", ({ detail }) => listener(detail));

const reached = (yes) => document.dispatchEvent(new CustomEvent("reach", { detail: yes }));

// What a proxy answers for a service that is away.
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
    // Nothing was carried out. Another login may have replaced the one that was sent along.
    if (tooOld) await (await import("./reauthenticate.js")).reauthenticate();
    else await navigator.locks.request(LOGIN, { mode: "shared" }, () => {});
    return api(path, { method, body, headers, raw, again: false });
  }
  for (const act of beforeLogin) act();
  location.assign(`/login?${new URLSearchParams({ next: location.pathname + location.search, reason: "session-ended" })}`);
  // Nothing goes on in a page that is being left.
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
