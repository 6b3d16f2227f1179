// Runs a task with the types that were generated from the OpenAPI document.
import createClient from "openapi-fetch";
import { setTimeout } from "node:timers/promises";
import type { components, paths } from "./schema.js";

const headers = { Authorization: `Bearer ${process.env.KEY}` };
const service = createClient<paths>({ baseUrl: process.env.URL!, headers });

function found<T>({ data, error }: { data?: T; error?: components["schemas"]["Problem"] }): T {
  if (data === undefined) throw new Error(error?.detail);
  return data;
}

const task = found(await service.POST("/api/tasks", {
  body: { name: "typescript", handler: "command", params: { argv: ["echo", "hello"] } },
}));
const { items } = found(await service.GET("/api/tasks", { params: { query: { search: "typescript" } } }));
if (items.length !== 1) throw new Error("the task is not in the list");
let run = found(await service.POST("/api/tasks/{taskId}/run", { params: { path: { taskId: task.id } } }));
while (run.state === "queued" || run.state === "running") {
  await setTimeout(100);
  run = found(await service.GET("/api/runs/{runId}", { params: { path: { runId: run.id } } }));
}
if (run.state !== "succeeded") throw new Error(run.error ?? run.state);
const unknown = await service.GET("/api/tasks/{taskId}", { params: { path: { taskId: "tsk_0123456789abcdef" } } });
if (unknown.error?.code !== "task_not_found") throw new Error("the unknown task was found");
console.log("the TypeScript client works");
