import { api } from "../api.js";
import { $, badge, button, counted, h, pressed, quiet, render, rowTitle, say, selectBox, table } from "../dom.js";
import { confirm } from "../dialogs.js";
import { filtering, LiveList } from "../list.js";
import { KEY_COLUMNS } from "../keys/details.js";

const DAY_MS = 86_400_000;
// The most keys that a request revokes.
const MOST = 200;

/** The chosen numbers of days as times, from the beginning of a day: so the next read has the same address. */
function query() {
  const { owner, status, ...days } = chosen();
  const today = Math.floor(Date.now() / DAY_MS);
  const times = Object.entries(days).map(([name, count]) =>
    [name, new Date((today + (name === "expires_before" ? 1 + Number(count) : -count)) * DAY_MS).toISOString()]);
  return { ...(owner && { owner }), ...(status && { status }), ...Object.fromEntries(times) };
}

const chosen = filtering($("#filter"), () => {
  picked.clear();
  return keys.begin();
});
const keys = new LiveList("/admin/keys", { limit: 100, counts: false, rest: 30_000, query, draw });

// The ids of ticked keys.
const picked = new Set();
const revokePicked = $("#revoke");

const pickedKeys = () => keys.items.filter(({ id, status }) => picked.has(id) && status !== "revoked");

function count() {
  revokePicked.disabled = !pickedKeys().length;
}

const pick = (key) => (key.status === "revoked" ? null : selectBox(picked, key, count));

const owner = (id, name) => (id.startsWith("svc_") && name ? h("a", { href: `/admin/service-accounts/${id}` }, name) : name ?? quiet("No user"));

/** A key's present state: keys of a disabled owner are refused. */
const effective = ({ status, owner_disabled: disabled }) => (status === "active" && disabled ? "owner_disabled" : status);

const COLUMNS = [
  ["Select", pick, "select"],
  ["Name", (key) => [rowTitle(key.id, h("a", { href: `/admin/keys/${key.id}` }, key.name)), h("code", { class: "sub" }, key.mask)], "main"],
  ["Owner", ({ owner_id: id, owner_name: name }) => [owner(id, name), h("code", { class: "sub" }, id)], "wrap", true],
  ["Status", (key) => badge(effective(key))],
  ...KEY_COLUMNS,
  ["Actions", (key) => key.status !== "revoked"
    && button("Revoke", `revoke:${key.id}`, () => revoke([key]), { "aria-label": `Revoke ${key.name}` }), "row-actions"],
];

function draw() {
  // The service reads many keys for a page, but not all.
  $("#empty").textContent = keys.more ? "No keys match so far. Show more to look further." : "No keys match.";
  render($("#list"), table("All keys", COLUMNS, keys.items, (key) => effective(key) !== "active" && "ended"));
  count();
}

function revoke(those) {
  const [one] = those;
  const what = those.length === 1 ? one.name : counted(those.length, "key");
  confirm({
    title: `Revoke ${what}?`,
    text: [
      ...those.slice(0, 10).map((key) => [h("code", {}, key.mask), ` ${key.name}, of ${key.owner_name ?? key.owner_id}`]),
      ...(those.length > 10 ? [`And ${those.length - 10} more.`] : []),
      "Programs that use them are refused at once, everywhere and for good.",
    ],
    action: those.length === 1 ? "Revoke key" : "Revoke keys",
    async act() {
      await api("/admin/keys/revoke", { method: "POST", body: { ids: those.map(({ id }) => id) } });
      picked.clear();
      await keys.refresh();
      say(`${what}: revoked.`);
    },
  });
}

revokePicked.addEventListener("click", pressed(() => revoke(pickedKeys().slice(0, MOST))));
await keys.begin();
