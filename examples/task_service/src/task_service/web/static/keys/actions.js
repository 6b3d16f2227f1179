// Dialogs of a key: show its value once, rotate, revoke and delete it. For the list and the key's own page.

import { api } from "../api.js";
import { $, h, say } from "../dom.js";
import { confirm, onSubmit, open } from "../dialogs.js";
import { when } from "../time.js";
import { isAnyones, keysPath } from "./owner.js";

let changed = async () => {};

/** Awaits `act(key's id, what)` after each change; `what` is "created", "revoked" or "deleted". */
export const afterChange = (act) => { changed = act; };

// The value, once.

const revealed = $("#reveal");
const acknowledge = $("#acknowledge");
const value = $("code", revealed);
const warnBeforeLeaving = (event) => event.preventDefault();

/** Show the value of a new key until it is acknowledged. */
export async function reveal({ id, name, key }) {
  $("#reveal-name").textContent = name;
  value.textContent = key;
  addEventListener("beforeunload", warnBeforeLeaving);
  const closed = open(revealed);
  await changed(id, "created").catch((problem) => say(problem.message));
  await closed;
}

/** Remove the value from the page, also from the browser's copy for Back. */
function forget() {
  removeEventListener("beforeunload", warnBeforeLeaving);
  value.textContent = $(".dialog-status", revealed).textContent = "";
  revealed.close();
}

acknowledge.addEventListener("click", forget);
addEventListener("pagehide", forget);
revealed.addEventListener("cancel", (event) => event.preventDefault());
revealed.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.preventDefault();
  acknowledge.focus();
  say("Save the key, then press “I have saved this key”.");
});

const rotateDialog = $("#rotate-dialog");
const rotateForm = $("form", rotateDialog);
let rotated, successor;

/** Make a successor; `done(successor)` is called after the user has saved its value. */
export function rotate(key, done) {
  rotated = key;
  successor = done;
  rotateForm.reset();
  $("#rotate-name").textContent = key.name;
  $("#rotate-seen").replaceChildren(when(key.last_used_at, "never"));
  open(rotateDialog);
}

onSubmit(rotateForm, async () => {
  const body = { overlap_seconds: Number(rotateForm.elements.overlap.value) };
  const created = await api(keysPath(`/${rotated.id}/rotate`), { method: "POST", body });
  rotateDialog.close();
  await reveal(created);
  successor(created);
});

/** The choice to end the runs of keys. */
export const cancelRuns = (whose) => {
  const box = h("input", { type: "checkbox" });
  return [box, h("label", { class: "check" }, box, `Also cancel ${whose} runs`)];
};

/** Revoke a key; the question begins with `first`. */
export function revoke(key, first = null) {
  const [box, choice] = cancelRuns("its");
  confirm({
    title: `Revoke ${key.name}?`,
    text: [
      ...(first ? [first] : []),
      [h("code", {}, key.mask), " stops working at once, everywhere and for good."],
      ["Last used: ", when(key.last_used_at, "never"), "."],
      ...(isAnyones ? [] : [choice]),
    ],
    action: "Revoke key",
    async act() {
      await api(keysPath(`/${key.id}/revoke`), { method: "POST", body: isAnyones ? undefined : { cancel_runs: box.checked } });
      await changed(key.id, "revoked");
      say(`${key.name}: revoked.`);
    },
  });
}

/** Delete a key that has ended. */
export const remove = (key) => confirm({
  title: `Delete ${key.name}?`,
  text: "delete-text",
  action: "Delete key",
  async act() {
    await api(keysPath(`/${key.id}`), { method: "DELETE" });
    await changed(key.id, "deleted");
    say(`${key.name}: deleted.`);
  },
});
