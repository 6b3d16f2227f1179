// The form for a new task and for an edited one.

import { api, Problem } from "./api.js";
import { $, h, me } from "./dom.js";
import { onSubmit, open } from "./dialogs.js";
import { restoreDraft } from "./forms.js";
import { schemaFields } from "./schema-form.js";

const dialog = $("#task-dialog");
export const taskForm = $("form", dialog);
// Only administrators can choose the owner.
const { name, handler, timeout_seconds: timeout, owner } = taskForm.elements;
let asked, handlers, params, edited, saved;

/** The handlers of this deployment, read once. */
export const allHandlers = () => {
  asked ??= api("/handlers").then(({ items }) => items);
  asked.catch(() => { asked = null; });
  return asked;
};

function showParams() {
  const { description, params_schema: schema } = handlers[handler.selectedIndex];
  $("#task-handler-hint").textContent = description ?? "";
  params = schemaFields(schema, edited?.handler === handler.value ? edited.params : {});
  $("#task-params").replaceChildren(...params.elements);
}

handler.addEventListener("change", showParams);

/** Open the form, empty or for `task`; `done(task)` is called with the saved task. */
export async function openTask(done, task = null) {
  handlers = await allHandlers();
  edited = task;
  saved = done;
  taskForm.reset();
  $("h2", taskForm).textContent = task ? `Edit ${task.name}` : "New task";
  $("[type=submit]", taskForm).textContent = task ? "Save" : "Create task";
  handler.replaceChildren(...handlers.map((one) => h("option", { value: one.name, selected: one.name === task?.handler }, one.title ?? one.name)));
  name.value = task?.name ?? "";
  timeout.value = task?.timeout_seconds ?? "";
  if (owner) owner.value = task?.owner_name ?? me.username;
  showParams();
  restoreDraft(taskForm);
  open(dialog);
}

/** The id of the user or service account with a name. */
async function ownerNamed(wanted) {
  const query = new URLSearchParams({ search: wanted, limit: 100 });
  const [users, accounts] = await Promise.all([api(`/admin/users?${query}`), api(`/admin/service-accounts?${query}`)]);
  const found = users.items.find(({ username }) => username === wanted) ?? accounts.items.find((account) => account.name === wanted);
  if (!found) throw new Problem(422, { errors: [{ field: "owner_id", message: "There is no user or service account with this name." }] });
  return found.id;
}

onSubmit(taskForm, async () => {
  const body = {
    name: name.value.trim(),
    handler: handler.value,
    params: params.read(),
    timeout_seconds: timeout.value === "" ? null : Number(timeout.value),
  };
  const named = owner?.value.trim().toLowerCase();
  if (owner && named !== (edited?.owner_name ?? me.username)) body.owner_id = await ownerNamed(named);
  const task = await (edited ? api(`/tasks/${edited.id}`, { method: "PATCH", body }) : api("/tasks", { method: "POST", body }));
  dialog.close();
  await saved(task);
});
