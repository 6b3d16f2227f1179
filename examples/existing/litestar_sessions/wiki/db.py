import os

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

engine = create_async_engine(os.environ.get("WIKI_DATABASE_URL", "sqlite+aiosqlite:///wiki.db"))
new_session = async_sessionmaker(engine, expire_on_commit=False)
