"""The tools of applications: what they generate runs unedited, is complete, and drops nothing of the library's.

Each test is a small project in a folder of its own, in which the tool's commands run as on a command line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import URL, MetaData, create_engine, inspect
from tests.databases import mysql_database, postgres_database
from tests.prefork import Prefork
from tests.stores.support import awaited

from msk_auth.stores import KeyQuery
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table
from msk_auth.stores.sqlalchemy.migrations import VERSION_TABLE, upgrade
from msk_auth.testing._store_contract import NOW, OWNER, make_record

pytestmark = pytest.mark.slow

KEY_TABLES = {
    "msk_auth_api_keys",
    "msk_auth_api_keys_registers",
}


@dataclass(frozen=True)
class Tool:
    """A tool that makes migrations.

    Args:
        app: The module `app` of a project; `{url}` is the database, `{fold}` what folds the library's tables in.
        load: Loads the tool.
        run: Runs the command in `sys.argv`, as the tool's script does.
        init: The command that makes the folder `migrations`.
        revise: Generates a migration.
        upgrade: Runs it.
        check: Fails if another migration would be generated.
        downgrade: Takes it back.
        include: The words that are replaced to keep the library's tables out, in `env.py` or in the module.
        edit: The words in `env.py` that the tool's own instructions have replaced.
    """

    app: str
    load: str
    run: str
    init: str
    revise: str
    upgrade: str
    check: str
    downgrade: str
    include: tuple[str, str]
    edit: tuple[str, str] = ("", "")


_ALEMBIC_ENV = (
    "target_metadata = None",
    """from app import metadata, url
target_metadata = metadata
config.set_main_option("sqlalchemy.url", url)""",
)
_INCLUDE = (
    "connection=connection,",
    "connection=connection, include_object=include_object,",
)

ALEMBIC = Tool(
    app="""
from sqlalchemy import Column, Integer, MetaData, Table
metadata = MetaData()
Table("shops", metadata, Column("id", Integer, primary_key=True))
url = {url!r}
{fold}
""",
    load="import alembic.autogenerate, alembic.config, msk_auth.stores.sqlalchemy.migrations",
    run="import alembic.config; alembic.config.main()",
    init="init migrations",
    edit=_ALEMBIC_ENV,
    revise="revision --autogenerate -m shops",
    upgrade="upgrade head",
    check="check",
    downgrade="downgrade base",
    include=_INCLUDE,
)

FLASK_MIGRATE = Tool(
    app="""
from flask import Flask
from flask_migrate import Migrate
from flask_sqlalchemy import SQLAlchemy
app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = {url!r}
db = SQLAlchemy(app)
class Shop(db.Model):
    id = db.Column(db.Integer, primary_key=True)
metadata = db.metadata
Migrate(app, db)
{fold}
""",
    load=f"{ALEMBIC.load}, flask.cli, flask_migrate, flask_sqlalchemy",
    run="import flask.cli; flask.cli.main()",
    init="db init",
    revise="db migrate",
    upgrade="db upgrade",
    check="db check",
    downgrade="db downgrade base",
    include=("Migrate(app, db)", "Migrate(app, db, include_object=include_object)"),
)

ADVANCED_ALCHEMY = Tool(
    app="""
from advanced_alchemy.base import BigIntBase
from advanced_alchemy.config import AlembicAsyncConfig, SQLAlchemyAsyncConfig
class Shop(BigIntBase):
    __tablename__ = "shops"
metadata = BigIntBase.metadata
config = SQLAlchemyAsyncConfig(
    connection_string={async_url!r}, alembic_config=AlembicAsyncConfig(script_location="migrations")
)
{fold}
""",
    load=f"{ALEMBIC.load}, advanced_alchemy.__main__, advanced_alchemy.alembic.commands, advanced_alchemy.base",
    run="""
import sys, advanced_alchemy.__main__
sys.argv[1:1] = ["--config", "app.config"]
advanced_alchemy.__main__.run_cli()
""",
    init="init migrations --no-prompt",
    revise="make-migrations -m shops --no-prompt",
    upgrade="upgrade --no-prompt",
    check="check",
    downgrade="downgrade base --no-prompt",
    include=_INCLUDE,
)

TOOLS = {
    "alembic": ALEMBIC,
    "flask-migrate": FLASK_MIGRATE,
    "advanced-alchemy": ADVANCED_ALCHEMY,
}


@pytest.fixture(scope="module")
def loaded() -> Iterator[Callable[[Tool], Prefork]]:
    """The process that has loaded a tool."""
    with ExitStack() as stack:
        # Without variables that Flask or PostgreSQL's driver would take up.
        environment = {"PATH": "", "COLUMNS": "200"}
        yield functools.cache(lambda tool: stack.enter_context(Prefork(tool.load, environment)))


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[URL]:
    """A database without a table."""
    match request.param:
        case "sqlite":
            yield URL.create("sqlite", database=str(tmp_path / "shop.db"))
        case "postgres":
            with postgres_database() as url:
                yield url
        case name:
            with mysql_database() as url:
                yield url.set(drivername=f"{name}+pymysql")


@dataclass
class Project:
    """An application in a folder, with one tool for its migrations."""

    folder: Path
    tool: Tool
    loaded: Prefork
    url: URL

    def begin(self, fold: str = "", *, include: bool = False) -> None:
        """Write the application, and make the tool's folder."""
        text = self.tool.app.format(
            url=self.url.render_as_string(hide_password=False),
            async_url=awaited(self.url).render_as_string(hide_password=False),
            fold=fold,
        )
        app = self.folder / "app.py"
        app.write_text(text)
        self.run(self.tool.init)
        env = self.folder / "migrations" / "env.py"
        replace(env, *self.tool.edit)
        if include:
            where = app if self.tool is FLASK_MIGRATE else env
            where.write_text(
                f"from msk_auth.stores.sqlalchemy.migrations import include_object\n{where.read_text()}"
            )
            replace(where, *self.tool.include)

    def run(self, *commands: str) -> None:
        """Run commands one after the other; each must succeed."""
        for command in commands:
            output = self.folder / "output.txt"
            self.loaded.run(self.folder, output, self.tool.run, "tool", *command.split())

    def revision(self) -> str:
        """The one migration that was generated."""
        versions = self.folder / "migrations" / "versions"
        (path,) = (path for path in versions.glob("*.py") if path.name != "__init__.py")
        return path.read_text()

    def tables(self) -> set[str]:
        engine = create_engine(self.url)
        try:
            return set(inspect(engine).get_table_names())
        finally:
            engine.dispose()


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, text
    path.write_text(text.replace(old, new))


@pytest.fixture
def project(tmp_path: Path, tool: str, url: URL, loaded: Callable[[Tool], Prefork]) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, TOOLS[tool], loaded(TOOLS[tool]), url)


@pytest.mark.parametrize(
    ("tool", "url"),
    [
        *((tool, "sqlite") for tool in TOOLS),
        # A tool that awaits, and one that blocks, on every database; one that takes a server of MariaDB for MySQL.
        *(
            pytest.param(tool, server, marks=pytest.mark.faults)
            for tool, server in [
                *product(["alembic", "advanced-alchemy"], ["postgres", "mariadb"]),
                ("alembic", "mysql"),
            ]
        ),
    ],
    indirect=["url"],
)
def test_a_generated_migration_runs_unedited_and_is_complete(project: Project) -> None:
    project.begin(
        "from msk_auth.stores.sqlalchemy import api_key_table\napi_keys = api_key_table(metadata)"
    )
    tool = project.tool
    project.run(tool.revise, tool.upgrade, tool.check)
    assert project.tables() >= KEY_TABLES
    assert "msk_auth.stores" not in project.revision()
    engine = create_engine(project.url)
    with closing(SQLAlchemyKeyStore(engine, api_key_table(MetaData()))) as store:
        upper, lower = make_record("KEY"), make_record("key")
        for record in (upper, lower):
            store.insert(record, max_active=2, now=NOW)
        assert (store.find("KEY"), store.find("key")) == (upper, lower)
        assert list(store.list(KeyQuery(f"{OWNER} ", NOW))) == []
    engine.dispose()
    project.run(tool.downgrade)
    assert not project.tables() & KEY_TABLES


@pytest.mark.parametrize(
    ("tool", "url"),
    [
        ("alembic", "sqlite"),
        *(
            pytest.param(tool, url, marks=pytest.mark.faults)
            for tool, url in [
                *((tool, "sqlite") for tool in TOOLS if tool != "alembic"),
                *product(["alembic"], ["postgres", "mariadb"]),
            ]
        ),
    ],
    indirect=["url"],
)
def test_tables_that_the_library_owns_are_not_dropped(project: Project) -> None:
    engine = create_engine(project.url)
    upgrade(engine)
    engine.dispose()
    project.begin(include=True)
    tool = project.tool
    project.run(tool.revise, tool.upgrade, tool.check)
    assert "msk_auth" not in project.revision()
    assert project.tables() >= {*KEY_TABLES, VERSION_TABLE}


@pytest.mark.parametrize(("tool", "url"), [("alembic", "sqlite")], indirect=["url"])
def test_include_object_may_stay_where_the_tables_are_folded_in(project: Project) -> None:
    project.begin(
        "from msk_auth.stores.sqlalchemy import api_key_table\napi_keys = api_key_table(metadata)",
        include=True,
    )
    tool = project.tool
    project.run(tool.revise, tool.upgrade, tool.check)
    assert project.tables() >= KEY_TABLES
