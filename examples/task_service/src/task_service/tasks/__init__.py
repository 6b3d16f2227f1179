"""Tasks and their runs.

One rule: the row of a run is the truth. Whoever changes it says what it must be like beforehand (`WHERE state = …`,
`AND claimed_by = …`), so any number of processes may work on one database, deliver the same doorbell twice or die at
any moment: a run is claimed by one worker at a time and finished once.

- `shapes`: tasks, runs and log lines as the API shows them
- `tasks`: what an owner does with tasks
- `runs`: what an owner does with runs
- `claims`: what a worker does with runs; `leases` judges whether one is alive
- `doorbell`: tells workers of runs that wait; `queue` does so on several machines
- `runner`: the worker of this process; `execution` is one of its runs, `run_log` collects what a run prints, `signals` wakes whoever waits for it
- `follow`: a run's log as it grows
- `retention`: deletes what is old
- `example`: the task with which a new service begins
"""
