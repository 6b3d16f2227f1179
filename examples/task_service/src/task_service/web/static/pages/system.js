import { api } from "../api.js";
import { $, fill, h, released, render, rowLink, table } from "../dom.js";
import { poll } from "../list.js";
import { when } from "../time.js";

const LEASES = [
  ["Run", (lease) => rowLink(lease.run_id, `/tasks/${lease.task_id}?run=${lease.run_id}`, h("code", {}, lease.run_id)), "main"],
  ["Worker", ({ worker }) => h("code", { class: "quiet" }, worker), null, true],
  ["Attempt", ({ attempt }) => attempt, null, true],
  ["Started", ({ started_at: at }) => when(at), null, true],
  ["Lease until", ({ expires_at: at }) => when(at), null, true],
];

const SHOWN = {
  "service.started_at": when,
  "service.verification_lease_ms": (ms) => (ms ? `${ms} ms` : "Off"),
  "database.kind": (kind) => ({ sqlite: "SQLite", postgresql: "PostgreSQL" })[kind],
  "database.size_bytes": (size) => `${(size / 2 ** 20).toFixed(1)} MiB`,
  "worker.elsewhere": (count) => count ?? "No queue",
  "queue.oldest_queued_at": (at) => when(at, "None"),
};

const look = poll(async () => {
  const now = await api("/admin/system");
  await released();
  fill($("#system"), now, SHOWN);
  $("#list").hidden = !now.leases.length;
  $("#empty").hidden = now.leases.length > 0;
  render($("#list"), table("Leases", LEASES, now.leases));
}, () => 5000);

look().catch((problem) => render($("#list"), h("p", { class: "empty", role: "alert" }, problem.message)));
