"""Builds the one compiled module; everything else about the package stands in pyproject.toml.

The module is optional: without a C compiler the installation goes through, and the search runs in torch.
"""

from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOM = "trimtab_lab/obstacles"


class Build(build_ext):
    """Compiles with the flags that each kind of compiler knows."""

    # No contraction to fused operations: the same bits on all processors of a kind. Nobody reads errno, and setting it
    # would keep square roots out of vector instructions.
    flags: ClassVar[dict[str, list[str]]] = {
        "unix": ["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno"],
        "mingw32": ["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno"],
        "msvc": ["/O2", "/std:c11", "/fp:precise"],
    }

    def build_extensions(self) -> None:
        """Set the flags once the compiler is known."""
        for extension in self.extensions:
            extension.extra_compile_args = self.flags.get(self.compiler.compiler_type, [])
        super().build_extensions()


setup(
    ext_modules=[
        Extension(
            "trimtab_lab.obstacles._search",
            [f"{ROOM}/module.c", f"{ROOM}/search.c"],
            depends=[f"{ROOM}/search.h"],
            optional=True,
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
