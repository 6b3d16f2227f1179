"""`python -m task_service` is the command `task-service`."""

from .cli import main

main(prog_name="task-service")
