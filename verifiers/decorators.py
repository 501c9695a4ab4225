"""Marks for hooks, and the one way in which a hook is called with the arguments it names.

    class MyEnv(MultiTurnEnv):
        @stop(priority=10)
        async def solved(self, state): ...

`@stop`, `@cleanup`, `@teardown` and the others only mark a function; `marked` finds the bound methods of an
object again, higher priority first, ties by name. Reward functions, stop conditions and cleanup handlers are all
called through `call_with`: they get what their signature names, or everything if it has `**kwargs`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import CoroutineType, FunctionType
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_verifiers_marks"


def _mark(name: str, **fixed: Any) -> Callable[[F], F]:
    def apply(func: F) -> F:
        marks = dict(getattr(func, _MARK, {}))
        marks[name] = fixed
        setattr(func, _MARK, marks)
        return func

    return apply


def _bare_or_called(name: str, func: Any, **options: Any) -> Any:
    """Serve both `@stop` and `@stop(priority=1)`."""
    return _mark(name, **options) if func is None else _mark(name, **options)(func)


@overload
def stop(func: F) -> F: ...
@overload
def stop(func: None = None, *, priority: int = 0) -> Callable[[F], F]: ...
def stop(func: Any = None, *, priority: int = 0) -> Any:
    """Mark a stop condition: `(self, state) -> bool`, checked before each model call, sync or async."""
    return _bare_or_called("stop", func, priority=priority)


@overload
def cleanup(func: F) -> F: ...
@overload
def cleanup(func: None = None, *, priority: int = 0) -> Callable[[F], F]: ...
def cleanup(func: Any = None, *, priority: int = 0) -> Any:
    """Mark a handler that runs once when a rollout ends, also after a failure, before it is scored."""
    return _bare_or_called("cleanup", func, priority=priority)


@overload
def teardown(func: F) -> F: ...
@overload
def teardown(func: None = None, *, priority: int = 0) -> Callable[[F], F]: ...
def teardown(func: Any = None, *, priority: int = 0) -> Any:
    """Mark a handler without arguments that runs when the environment is no longer needed."""
    return _bare_or_called("teardown", func, priority=priority)


@overload
def setup(func: F) -> F: ...
@overload
def setup(func: None = None, *, priority: int = 0) -> Callable[[F], F]: ...
def setup(func: Any = None, *, priority: int = 0) -> Any:
    """Mark a setup function. Only a mark: nothing calls it."""
    return _bare_or_called("setup", func, priority=priority)


def update(func: Any = None, *, stage: str | None = None, priority: int = 0) -> Any:
    """Mark an update function. Only a mark: nothing calls it."""
    return _bare_or_called("update", func, stage=stage, priority=priority)


def metric(func: Any = None, *, stage: str | None = None, priority: int = 0) -> Any:
    """Mark a metric. Only a mark: nothing calls it."""
    return _bare_or_called("metric", func, stage=stage, priority=priority)


def reward(func: Any = None, *, weight: float = 1.0, stage: str | None = None, priority: int = 0) -> Any:
    """Mark a reward function. Only a mark: add it to a rubric to have it called."""
    return _bare_or_called("reward", func, weight=weight, stage=stage, priority=priority)


def advantage(func: Any = None, *, priority: int = 0) -> Any:
    """Mark an advantage function. Only a mark: nothing calls it."""
    return _bare_or_called("advantage", func, priority=priority)


def tool(func: Any = None, *, parallel: bool = False) -> Any:
    """Mark a function as a tool; `parallel=True` lets its calls overlap with others so marked."""

    def apply(function: F) -> F:
        function.parallel = parallel  # type: ignore[attr-defined]  # the documented attribute form
        return _mark("tool", parallel=parallel)(function)

    return apply if func is None else apply(func)


def mark_of(func: Any, name: str) -> dict[str, Any] | None:
    """The options a function was marked with, or None if it does not bear that mark."""
    marks = getattr(func, _MARK, None)
    # A mock answers every attribute; only our own marks are a dict.
    return marks.get(name) if isinstance(marks, dict) else None


def marked(obj: Any, name: str) -> list[Callable[..., Any]]:
    """The bound methods of `obj` that bear a mark, by priority descending, then by name.

    Looks through the classes, so that properties are not run; a method overridden without the mark loses it.
    """
    found = _marked_in(type(obj), name)  # type: ignore[arg-type]  # classes hash; mypy takes them for objects
    attributes = getattr(obj, "__dict__", {})
    called = _called(frozenset(map(type, attributes.values())))
    own = called and [
        (-int(options.get("priority", 0)), attribute)
        for attribute, value in attributes.items()
        if type(value) in called and (options := mark_of(value, name)) is not None
    ]
    if not own:
        return [getattr(obj, attribute) for _, attribute in found]
    shadowed = {attribute for _, attribute in own}
    ordered = sorted([*own, *(item for item in found if item[1] not in shadowed)])
    return [getattr(obj, attribute) for _, attribute in ordered]


@lru_cache(maxsize=1024)  # most attributes are none of these, and this is asked for at every turn
def _called(types: frozenset[type]) -> frozenset[type]:
    """Those of the types whose objects can be called."""
    return frozenset(one for one in types if any("__call__" in vars(base) for base in one.__mro__))


@lru_cache(maxsize=1024)  # asked for at every turn, while classes do not change once they are made
def _marked_in(cls: type, name: str) -> tuple[tuple[int, str], ...]:
    found: list[tuple[int, str]] = []
    for attribute in {key for base in cls.__mro__ for key in vars(base)}:
        options = mark_of(inspect.getattr_static(cls, attribute, None), name)
        if options is not None:
            found.append((-int(options.get("priority", 0)), attribute))
    return tuple(sorted(found))


async def maybe_await(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `func` if it is callable, then await the result if it can be awaited."""
    result = func(*args, **kwargs) if callable(func) else func
    return await result if type(result) is CoroutineType or inspect.isawaitable(result) else result


def accepted(func: Callable[..., Any], candidates: Mapping[str, Any]) -> dict[str, Any]:
    """Of `candidates`, those that `func` names, or all of them if it takes `**kwargs`."""
    names, refused = _parameters(func)
    if refused is not None:
        return {key: value for key, value in candidates.items() if key not in refused}
    return {key: candidates[key] for key in names if key in candidates}


async def call_with(func: Callable[..., Any], candidates: Mapping[str, Any]) -> Any:
    """Call `func`, sync or async, with the candidates that it accepts."""
    result = func(**accepted(func, candidates))
    return await result if inspect.isawaitable(result) else result


def missing_parameters(func: Callable[..., Any], supplied: Iterable[str]) -> list[str]:
    """Required parameters of `func` that none of the names in `supplied` can fill."""
    known = set(supplied)
    return [
        parameter.name
        for parameter in _signature(func).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and parameter.name not in known
    ]


def function_name(func: Callable[..., Any]) -> str:
    """The name metrics are keyed by: `__name__`, of the wrapped function for partials, else of the class."""
    while not hasattr(func, "__name__") and hasattr(func, "func"):
        func = func.func
    return str(getattr(func, "__name__", type(func).__name__))


def is_async(func: Callable[..., Any]) -> bool:
    """Whether calling `func` only makes a coroutine; looks through partials and `__call__`."""
    while isinstance(func, functools.partial):
        func = func.func
    target = getattr(func, "__func__", func)  # bound methods are made anew at each access
    return _makes_coroutines(target) if type(target) is FunctionType else _is_async(func)


def _is_async(func: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(type(func).__call__)


_makes_coroutines = lru_cache(maxsize=4096)(inspect.iscoroutinefunction)


def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func)


_Parameters = tuple[tuple[str, ...], frozenset[str] | None]
"""The names that can be given by name, and, if the function takes `**kwargs`, those that can not; else None."""


def _parameters(func: Callable[..., Any]) -> _Parameters:
    # Signatures are costly and asked for at every call of every hook. Bound methods are made anew at each access,
    # so the key is the function below; a partial or callable object is looked at each time.
    if inspect.ismethod(func) and inspect.isfunction(func.__func__):
        names, refused = _cached_parameters(func.__func__)
        return names[1:], refused if refused is None else refused | set(names[:1])
    if inspect.isfunction(func):
        return _cached_parameters(func)
    return _read_parameters(func)


@lru_cache(maxsize=4096)
def _cached_parameters(func: Callable[..., Any]) -> _Parameters:
    return _read_parameters(func)


def _read_parameters(func: Callable[..., Any]) -> _Parameters:
    parameters = _signature(func).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    positional = [item.name for item in parameters if item.kind is inspect.Parameter.POSITIONAL_ONLY]
    return (
        tuple(parameter.name for parameter in parameters if parameter.kind in by_name),
        frozenset(positional) if takes_all else None,
    )
