// Runs: starting one, and following its output.

import { api } from "./api.js";

export const isActive = (run) => run?.state === "queued" || run?.state === "running";

const unanswered = new Map();

/** Start a run. If the result is unknown, the next attempt sends the same Idempotency-Key, so that both start only
 *  one run. */
async function start(path, body) {
  const request = JSON.stringify([path, body]);
  const key = unanswered.get(request) ?? crypto.randomUUID();
  unanswered.delete(request);
  try {
    return await api(path, { method: "POST", body, headers: { "Idempotency-Key": key } });
  } catch (problem) {
    if (problem.unanswered) unanswered.set(request, key);
    throw problem;
  }
}

export const startRun = (taskId) => start(`/tasks/${taskId}/run`);

/** Run a task again, with the run's parameters or with others. */
export const rerun = (runId, params) => start(`/runs/${runId}/rerun`, params && { params });

/** Follow a run's output: `wrote({seq, at, stream, text})` is called with each piece, `progressed({fraction, text})` with
 *  the handler's progress, `skipped()` for pieces that are not kept, `ended(run)` once, and `failed(problem)` on a refusal. Returns a function that stops.
 *  A hidden tab has no connection: browsers open six to one host, and six such tabs would block a seventh. */
export function followLog(runId, { wrote, skipped, progressed, ended, failed }) {
  let source;
  let last = 0;
  const stop = () => {
    source?.close();
    source = null;
  };
  const start = () => {
    source = new EventSource(`/api/runs/${runId}/log`);
    source.addEventListener("log", ({ data }) => {
      const piece = JSON.parse(data);
      // A new stream begins at the first piece.
      if (piece.seq > last + 1) skipped();
      if (piece.seq > last) wrote(piece);
      last = Math.max(last, piece.seq);
    });
    source.addEventListener("progress", ({ data }) => progressed(JSON.parse(data)));
    source.addEventListener("end", ({ data }) => {
      leave();
      ended(JSON.parse(data));
    });
    source.addEventListener("error", () => {
      // The browser tries again unless it was refused; then a request for the run gets the reason, or leads to the log-in.
      if (source?.readyState === EventSource.CLOSED) api(`/runs/${runId}`).catch(failed);
    });
  };
  const turn = () => {
    if (document.hidden) stop();
    else if (!source) start();
  };
  const leave = () => {
    document.removeEventListener("visibilitychange", turn);
    stop();
  };
  document.addEventListener("visibilitychange", turn);
  turn();
  return leave;
}
