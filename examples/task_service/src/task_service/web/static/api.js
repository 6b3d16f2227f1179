// The JSON API, and what happens when a session runs out.

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

export async function api(path, { method = "GET", body, headers, loggedIn = true } = {}) {
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
    throw new Problem(0, { detail: "The service cannot be reached. Check the connection and try again." });
  }
  const said = parsed(text);
  if (answer.ok) return said;
  const problem = new Problem(answer.status, said);
  if (answer.status !== 401 || !loggedIn) throw problem;
  for (const act of beforeLogin) act();
  const reason = problem.code === "login_too_old" ? "login-again" : "session-ended";
  location.assign(`/login?${new URLSearchParams({ next: location.pathname + location.search, reason })}`);
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
