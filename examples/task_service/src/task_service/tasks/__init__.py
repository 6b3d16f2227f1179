"""Tasks and their runs.

One rule: the row of a run is the truth. Every statement that changes it names the state that it expects
(`WHERE state = …`, `AND claimed_by = … AND attempt = …`). So any number of processes may work on one database, be notified
twice of the same run, or die at any moment: one worker at a time holds a run, and it is finished once.

For owners:

- `tasks` and `runs`: what an owner does with tasks and with runs, and who may see and change what
- `parameters`: which parameters are accepted; the secrets among them are sealed, opened and masked there alone
- `run_log`: the log and the progress of a run, from its handler into the database and on to readers

For workers, in the order in which a run passes through them:

- `runner`: the worker of this process. It acquires runs, renews their leases and stops them
- `worker_runs`: the statements of a worker: acquire, renew, release, reclaim, finish
- `next_run`: which run is next, and whether its owner and its key may still have it started
- `execution`: one run while this process executes it, from its handler to its outcome
- `masked_output`: keeps the secrets of a run out of its log

For both:

- `models`: tasks, runs and log lines as the API shows them
- `notifications`: wake workers and readers in this process and in others; `queue` does so on several machines

For operators:

- `status`: counts runs by state, and reports on the service as a whole
- `retention`: deletes what is old
- `sealing`: seals the secrets that an older version or an earlier pepper has left
"""
