"""The service's database: its tables, its connections and its migrations.

One rule: every access uses `Database.read` and `Database.write`, which limit its time, take the write lock of
SQLite before the first statement, and raise `StoreUnavailable` when the database fails. The only exceptions are the library's
key store, which uses the same pool, and the queue of `task_service.tasks.queue`.

- `schema`: every table
- `engine`: opens the database; `postgresql` has its connections to PostgreSQL
- `servers`: refuses a pooler that shares sessions between connections, and two writable servers
- `migrate`: brings the schema to this version; `migrate_postgresql` does so while other processes write
- `copy`: copies a database into another
"""
