"""Build hook: compiles the hot modules if there is a C compiler, and builds a plain wheel if there is none.

``AIOREPL_PURE_PYTHON=1`` skips the compilation. ``AIOREPL_PURE_PYTHON=0`` requires it: the build fails instead of making a
plain wheel. An editable install puts the extension modules into ``aiorepl/_compiled``; after an edit of a source they are
ignored until the next compilation (``aiorepl/compiled.py``). A wheel is compiled anew, unless ``AIOREPL_COMPILED`` names a folder
of extension modules that were made from the same sources: tests build a wheel without a second compilation.

``python hatch_build.py`` compiles in place, unless the extension modules there were made from these sources.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,  # types stand in the .pxd files, and nowhere else
}
# Debug symbols are most of an extension module's size. -O1 compiles in half of -O3's time and costs about 5 % of the CPU
# that values and transactions take (bench/PROFILES.md). ``byteops.is_plain`` wants its loop vectorized.
FLAGS = [] if os.name == "nt" else ["-O1", "-ftree-vectorize", "-g0", "-w"]


class CompiledModules(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's custom hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before files are gathered."""
        wish = os.environ.get("AIOREPL_PURE_PYTHON", "")
        if self.target_name != "wheel" or wish not in ("", "0"):
            return
        root = Path(self.root)
        names = _compiled_names(root)
        self._scratch = tempfile.TemporaryDirectory(prefix="aiorepl-build-")
        try:
            made = {} if version == "editable" else _made_already(root, names)
            made = made or compile_modules(root, names, Path(self._scratch.name))
        except Exception as error:
            if wish == "0" or not _is_compilers(error):
                raise
            self.app.display_warning(f"aiorepl is installed without compiled modules, and slower: {error}")
            return
        if version == "editable":
            _install(made, names)
            return
        digest = Path(self._scratch.name, names.DIGEST)
        digest.write_text(names.WHEEL)
        made[names.DIGEST] = digest
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for inside, path in made.items():
            build_data["force_include"][str(path)] = f"aiorepl/_compiled/{inside}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Clean up."""
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()


def compile_in_place() -> int:
    """Compile into ``aiorepl/_compiled`` what was edited since. Returns the exit code."""
    wish = os.environ.get("AIOREPL_PURE_PYTHON", "")
    root = Path(__file__).resolve().parent
    names = _compiled_names(root)
    if wish not in ("", "0") or names.is_fresh():
        return 0
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="aiorepl-build-") as scratch:
            _install(compile_modules(root, names, Path(scratch)), names)
    except Exception as error:
        if not _is_compilers(error):
            raise
        print(
            f"aiorepl: nothing is compiled, plain Python runs instead, and slower: {error}", file=sys.stderr
        )
        return int(wish == "0")
    seconds = time.monotonic() - began
    print(f"aiorepl: compiled {len(names.MODULES)} modules in {seconds:.0f} s", file=sys.stderr)
    return 0


def compile_modules(root: Path, names: ModuleType, scratch: Path) -> dict[str, Path]:
    """Compile the hot modules into ``scratch``.

    :returns: the files that belong into ``_compiled``, by their path there.
    """
    from Cython.Build import cythonize
    from Cython.Compiler import Options
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    _require_compiler()
    # Cython overlooks this directive as a decorator in .pxd files, so it is set for whole modules.
    Options.get_directive_defaults().setdefault("no_gc", False)
    cores = os.cpu_count() or 1
    before = Path.cwd()
    os.chdir(root)
    try:
        extensions = []
        for without_cycles in (False, True):
            chosen = {
                name: f"aiorepl/{name.replace('.', '/')}.py"
                for name in names.MODULES
                if (name in names.WITHOUT_CYCLES) is without_cycles
            }
            extensions += cythonize(
                [
                    Extension(f"aiorepl.{name}", [path], extra_compile_args=FLAGS)
                    for name, path in chosen.items()
                ],
                build_dir=str(scratch / "c"),
                compiler_directives=DIRECTIVES | {"no_gc": without_cycles},
                nthreads=cores,
                quiet=True,
            )
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.build_lib, command.build_temp = str(scratch / "lib"), str(scratch / "objects")
        command.parallel = cores
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    library = scratch / "lib" / "aiorepl"
    (library / names.DIGEST).write_text(names.digest(root / "aiorepl"))
    return {path.relative_to(library).as_posix(): path for path in library.rglob("*") if path.is_file()}


def _made_already(root: Path, names: ModuleType) -> dict[str, Path]:
    """The files of ``AIOREPL_COMPILED``, by their path there, if they were made from these sources."""
    if "AIOREPL_COMPILED" not in os.environ:
        return {}
    folder = Path(os.environ["AIOREPL_COMPILED"])
    digest = folder / names.DIGEST
    if not digest.is_file() or digest.read_text() != names.digest(root / "aiorepl"):
        return {}
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob(f"*{names.SUFFIX}*")}


def _compiled_names(root: Path) -> ModuleType:
    """``aiorepl/compiled.py``, without the package, whose dependencies a build does not have."""
    spec = importlib.util.spec_from_file_location("compiled", root / "aiorepl" / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _require_compiler() -> None:
    """Fail before Cython runs, which takes half a minute, if its C files could not be compiled."""
    from setuptools.errors import PlatformError

    if os.name == "nt":
        return
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(command.split()[0]) is None:
        raise PlatformError(f"there is no C compiler ({command.split()[0]})")
    trial = [*command.split(), "-fsyntax-only", "-x", "c", "-"]
    if subprocess.run(trial, stdin=subprocess.DEVNULL, check=False).returncode != 0:  # noqa: S603 - the user's compiler
        raise PlatformError(f"the C compiler ({command}) does not compile an empty file")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise PlatformError(f"{header} is missing (Debian: apt install python3-dev)")


def _is_compilers(error: Exception) -> bool:
    """Whether the C compiler is what is wrong, or missing. What Cython says is a fault of ours."""
    from setuptools.errors import CCompilerError, ExecError, PlatformError

    return isinstance(error, (CCompilerError, ExecError, PlatformError, OSError))


def _install(made: dict[str, Path], names: ModuleType) -> None:
    """Put what was made into the working tree, and nothing older with it; other interpreters' stays."""
    for old in names.FOLDER.rglob(f"*{names.SUFFIX}*"):
        old.unlink()
    # The digest last: until then nobody looks at the rest.
    for inside, path in sorted(made.items(), key=lambda each: each[0] == names.DIGEST):
        place = names.FOLDER / inside
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())


if __name__ == "__main__":
    sys.exit(compile_in_place())
