"""Tasks and their runs.

One rule: the row of a run is the truth. Every statement that changes the row names the expected state
(`WHERE state = …`, `AND claimed_by = … AND attempt = …`). So any number of processes may work on one database, be notified
twice of the same run, or die at any moment: one worker at a time holds a run, and the run is finished once.

For owners:

- `tasks` and `runs`: the operations of owners, with the checks of their permissions
- `parameters`: the checks of parameters; the only module that seals, opens and masks the secrets among them
- `run_log`: the log and the progress of a run, from its handler into the database and to readers

For workers, in the order in which a run passes through them:

- `runner`: the worker of this process, which acquires runs, renews their leases and stops them
- `worker_runs`: the statements of a worker: acquire, renew, release, reclaim, finish
- `next_run`: the choice of the next run, with the checks of its owner and its key
- `execution`: one run while this process executes it, from its handler to its outcome
- `masked_output`: keeps the secrets of a run out of its log

For both:

- `models`: the API's tasks, runs and log lines
- `notifications`: wake workers and readers in this process and in others; `queue` does so on several machines

For operators:

- `status`: counts runs by state, and reports on the service as a whole
- `retention`: deletes old rows
- `sealing`: seals secrets from an older version or an earlier pepper
"""
