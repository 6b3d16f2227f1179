"""The service's database: its tables, its connections and its migrations.

One rule: every access goes through `Database.read` and `Database.write`, which bound it in time, take the write lock of
SQLite before the first statement, and raise `StoreUnavailable` when the database fails. Only the library's key store, which
uses the same pool, and the queue of `task_service.tasks.queue` have other ways in.

- `schema`: every table
- `engine`: opens the database; `postgresql` has its connections to PostgreSQL
- `pooling`: refuses a pooler that shares sessions between connections; `primaries`: refuses two writable servers
- `migrate`: brings the schema to this version; `migrate_postgresql` does so while other processes write
- `copy`: copies a database into another
"""
