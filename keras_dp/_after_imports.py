"""Acts once some modules were imported, whoever imports them."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Watch(importlib.abc.MetaPathFinder):
    """Finds what others find; acts when no watched module is executing.

    One of the modules may import the others in the middle of its own code. So
    may one of this package, which `act` would find half done.
    """

    def __init__(self, names: set[str], act: Callable[[], None]) -> None:
        self._names, self._act = names, act
        self._own = f"{__package__}."
        self._executing: set[str] = set()
        self._searches = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of a watched module, `None` for all others."""
        watched = fullname in self._names or fullname.startswith(self._own)
        if not watched or self._searches:
            return None
        self._searches = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searches = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self._executing.add(fullname)
            try:
                execute(module)
            finally:
                self._executing.discard(fullname)
            if self._names <= sys.modules.keys() and not self._executing:
                self.stop()
                self._act()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def stop(self) -> None:
        """Watches no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def call(act: Callable[[], None], names: set[str]) -> None:
    """Calls a function when modules are imported: now, or later.

    Args:
        act: Called without arguments, once.
        names: The modules, all of which must be there.
    """
    if names <= sys.modules.keys():
        act()
    else:
        sys.meta_path.insert(0, _Watch(names, act))
