"""Runs a task with the client that was generated from the OpenAPI document."""

import os
import time

from client import AuthenticatedClient
from client.api.runs import get_run
from client.api.tasks import create_task, get_task, list_tasks, run_task
from client.models import NewTask, Problem, Run, RunDetails, RunState, Task, TaskPage

service = AuthenticatedClient(os.environ["URL"], os.environ["KEY"])
new = NewTask.from_dict(
    {"name": "python", "handler": "command", "params": {"argv": ["echo", "hello"]}}
)
task = create_task.sync(client=service, body=new)
assert isinstance(task, Task), task
page = list_tasks.sync(client=service, search="python")
assert isinstance(page, TaskPage), page
assert [each.id for each in page.items] == [task.id]
run = run_task.sync(task.id, client=service)
while isinstance(run, Run | RunDetails) and run.state in {RunState.QUEUED, RunState.RUNNING}:
    time.sleep(0.1)
    run = get_run.sync(run.id, client=service)
assert isinstance(run, RunDetails), run
assert run.state is RunState.SUCCEEDED, run
unknown = get_task.sync("tsk_0123456789abcdef", client=service)
assert isinstance(unknown, Problem), unknown
assert unknown.code == "task_not_found"
print("the Python client works")
