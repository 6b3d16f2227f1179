// Runs: starting one, and following its output.

import { api } from "./api.js";
import { h } from "./dom.js";

export const isActive = (run) => run?.state === "queued" || run?.state === "running";

const unanswered = new Map();

/** Start a task. When it stays open whether that happened, the next attempt carries the same Idempotency-Key, so that
 *  both together make one run. */
export async function startRun(taskId) {
  const key = unanswered.get(taskId) ?? crypto.randomUUID();
  unanswered.delete(taskId);
  try {
    return await api(`/tasks/${taskId}/run`, { method: "POST", headers: { "Idempotency-Key": key } });
  } catch (problem) {
    if (problem.unanswered) unanswered.set(taskId, key);
    throw problem;
  }
}

const MOST_CHUNKS = 5000;

/** Show a run's output in `view` as it comes. `progressed({fraction, text})` is called when its handler says how far it
 *  has come, `ended(run)` once. Returns what stops it. */
export function followLog(runId, view, { progressed, ended }) {
  const source = new EventSource(`/api/runs/${runId}/log`);
  const note = (text) => view.append(h("span", { class: "system" }, text));
  let last = { text: "\n" };
  view.replaceChildren();
  source.addEventListener("log", ({ data }) => {
    const chunk = JSON.parse(data);
    const atEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 24;
    if (chunk.stream !== last.stream && !last.text.endsWith("\n")) view.append("\n");
    view.append(h("span", { class: chunk.stream }, chunk.text));
    if (view.childNodes.length > MOST_CHUNKS) view.firstChild.remove();
    if (atEnd) view.scrollTop = view.scrollHeight;
    last = chunk;
  });
  source.addEventListener("progress", ({ data }) => progressed(JSON.parse(data)));
  source.addEventListener("end", ({ data }) => {
    source.close();
    if (!view.childNodes.length) note("No output.");
    ended(JSON.parse(data));
  });
  source.addEventListener("error", () => {
    // The browser tries again by itself unless it was refused; then asking for the run says why, or leads to the log-in.
    if (source.readyState === EventSource.CLOSED) api(`/runs/${runId}`).catch((problem) => note(problem.message));
  });
  return () => source.close();
}
