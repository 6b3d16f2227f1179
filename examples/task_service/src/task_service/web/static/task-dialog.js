// The form for a new task and for an edited one.

import { api } from "./api.js";
import { $, h } from "./dom.js";
import { onSubmit, open } from "./dialogs.js";
import { checkFields, restoreDraft } from "./forms.js";
import { schemaFields } from "./schema-form.js";

const dialog = $("#task-dialog");
export const taskForm = $("form", dialog);
const { name, handler, timeout_seconds: timeout } = taskForm.elements;
let asked, handlers, params, edited, saved;

/** The handlers of this deployment, asked for once. */
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

/** Open the form, empty or for `task`; `done(task)` is called with what the service saved. */
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
  showParams();
  restoreDraft(taskForm);
  open(dialog);
}

onSubmit(taskForm, async () => {
  checkFields(taskForm);
  const body = {
    name: name.value.trim(),
    handler: handler.value,
    params: params.read(),
    timeout_seconds: timeout.value === "" ? null : Number(timeout.value),
  };
  const task = await (edited ? api(`/tasks/${edited.id}`, { method: "PATCH", body }) : api("/tasks", { method: "POST", body }));
  dialog.close();
  await saved(task);
});
