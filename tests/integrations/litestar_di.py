"""Litestar's marks of arguments, for every version that the adapter supports."""

from typing import Annotated, Any, TypeVar

try:
    from litestar.di import NamedDependency
    from litestar.params import FromPath, FromQuery, JSONBody, PathParameter
except ImportError:  # before Litestar 2.23, which goes by the names of arguments alone
    from litestar.params import Body
    from litestar.params import Parameter as PathParameter

    T = TypeVar("T")
    NamedDependency: Any = Annotated[T, "a dependency"]
    FromPath: Any = Annotated[T, "a part of the path"]
    FromQuery: Any = Annotated[T, "of the query"]
    JSONBody: Any = Annotated[T, Body()]

__all__ = ["FromPath", "FromQuery", "JSONBody", "NamedDependency", "PathParameter"]
