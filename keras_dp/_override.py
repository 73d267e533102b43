"""The mark of a method that replaces one of a base class, PEP 698.

Type checkers refuse the mark where the base class has no such method. Python
has it since 3.12; here it does nothing, so that Python 3.11 needs no further
package.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override as override  # noqa: TID251
else:

    def override(method):
        """Returns the method."""
        return method
