"""Federated methods, one readable file each: to add one is to add a file.

A method's file, and PyTorch with it, is imported only when the method is asked for; its terms need neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, TypeVar

from shared.errors import ConfigurationError
from shared.escaping import escape
from shared.exchange.names import is_name
from shared.exchange.reading import check_record
from shared.learning import plugins
from shared.learning.methods.terms import TERMS, MethodOptions, Over, Terms
from shared.learning.younger import completed

if TYPE_CHECKING:
    from shared.learning.methods.contract import Method

TermsT = TypeVar("TermsT", bound=Terms)

_CONTRACT, _TERMS = "contract", "terms"
_LONGEST_TOLD = 300  # characters of what a library says
REFERENCES = ("centralised", "single_site")
"""Not federated: what a federation is compared with on one machine."""


def method_names() -> tuple[str, ...]:
    """Return the names of all federated methods: those of their files; of a file that no run could name, none."""
    others = (_CONTRACT, _TERMS, *REFERENCES)
    found = (module.name for module in iter_modules(__path__) if module.name not in others)
    return tuple(sorted(name for name in found if is_name(name)))


def open_method(name: str, options: Mapping[str, object]) -> Method:
    """Return the method that a run configuration names, with the run's options.

    Raises:
        ConfigurationError: there is none of that name, and the known ones are listed; or names every option that is
            unknown or wrong, and the remedy.
    """
    return _opened(method_class, name, options)


def open_terms(name: str, options: Mapping[str, object]) -> Terms:
    """Return the terms of that method, without PyTorch where this package tells them.

    Raises:
        ConfigurationError: as for ``open_method``.
    """
    return _opened(terms_class, name, options)


def options_form(name: str, options: Mapping[str, object]) -> type[MethodOptions]:
    """Return what options of a method, unchecked, are checked by.

    Raises:
        ConfigurationError: there is no such method.
    """
    return terms_class(name).chosen(options, terms_class).Options


def usual_options(name: str) -> dict[str, Any]:
    """Return the options of a method that a new run takes, as JSON has them.

    Raises:
        ConfigurationError: there is no such method.
    """
    require_options(name)
    form = options_form(name, {})
    return check_record(completed({}, form), form, "method_options").model_dump(mode="json")


def _opened(class_of: Callable[[str], type[TermsT]], name: str, options: Mapping[str, object]) -> TermsT:
    chosen = class_of(name).chosen(options, class_of)
    return chosen(check_record(options, chosen.Options, "method_options"))


def terms_class(name: str) -> type[Terms]:
    """Return the class of a method's terms: of a method that somebody added, its own class.

    Raises:
        ConfigurationError: as for ``method_class``.
    """
    return TERMS.get(name) or method_class(name)


def method_class(name: str) -> type[Method]:
    """Return the class of a method.

    Raises:
        ConfigurationError: there is none of that name, and the known ones are listed; or its file holds none.
    """
    kind: type[Method] = import_module(f"{__name__}.{_CONTRACT}").Method
    if name not in (*method_names(), *REFERENCES):
        return _of_plugin(name, kind)
    path = file_of(name)
    classes = [each for each in _loaded(name).values() if isinstance(each, type) and issubclass(each, kind)]
    for each in classes:
        if vars(each).get("name") == name:
            return each
    own = [each for each in classes if each.__module__ == f"{__name__}.{name}"]
    if not own:
        raise ConfigurationError(
            [f"{path}: there is no method in it; derive a class from Method, with name = {name!r}"]
        )
    raise ConfigurationError([f"{path}: the class {own[-1].__name__} must say name = {name!r}, as its file is called"])


def _of_plugin(name: str, kind: type[Method]) -> type[Method]:
    found = plugins.load("methods", name)
    if found is None:
        known = sorted({*method_names(), *plugins.provided("methods")})
        raise ConfigurationError(
            [f"method: there is no method {name}; use one of {', '.join(known)}, or install its file or wheel"]
        )
    if not (isinstance(found, type) and issubclass(found, kind) and vars(found).get("name") == name):
        wheel = plugins.wheel_behind("methods", name)
        raise ConfigurationError(
            [f"plug-in {wheel}: {name} must be a class derived from Method that says name = {name!r}; correct it"]
        )
    return found


def require_options(name: str) -> None:
    """Check that a method's options have those of every method, and a value each where a run says none.

    Raises:
        ConfigurationError: they have not; or as for ``method_class``.
    """
    method = method_class(name)
    wheel = plugins.wheel_behind("methods", name)
    where = f"plug-in {wheel}" if wheel is not None else str(file_of(name))
    wanted = Over.Options if issubclass(method, Over) else MethodOptions
    if not issubclass(method.Options, wanted):
        raise ConfigurationError([f"{where}: Options of {method.__name__} must be derived from {wanted.__qualname__}"])
    try:
        method.Options()
    except Exception as error:  # whatever a class may do wrong
        told = escape(" ".join(f"{type(error).__name__}: {error}".split()))[:_LONGEST_TOLD]
        raise ConfigurationError(
            [f"{where}: Options of {method.__name__} cannot be made of their defaults ({told}); give each option one"]
        ) from error


def file_of(name: str) -> Path:
    """Return the file that a known method is written in."""
    return next(path for folder in __path__ if (path := Path(folder, f"{name}.py")).is_file())


def files_behind(method: type[Method]) -> dict[str, Path]:
    """Return, by name, the files of a method, of the methods that it extends or goes over, and of their terms."""
    names = [each.__module__.removeprefix(f"{__name__}.") for each in method.__mro__]
    known = (*method_names(), *REFERENCES, _TERMS)
    return {name: file_of(name) for name in names if name in known}


def _loaded(name: str) -> Mapping[str, object]:
    """Return all that a method's file defines.

    Raises:
        ConfigurationError: it cannot be loaded.
    """
    path = file_of(name)
    try:
        return vars(import_module(f"{__name__}.{name}"))
    except Exception as error:  # whatever a file may do wrong
        passed = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {passed[-1]}" if passed else ""
        told = escape(f"{type(error).__name__}: {error}")
        raise ConfigurationError([f"{path}{where}: the file cannot be loaded ({told}); correct it"]) from error
