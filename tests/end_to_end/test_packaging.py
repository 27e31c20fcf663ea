"""The recipes for Apptainer and Spack. Neither tool is here, so what they would read is read as
their manuals say, and the image's commands run in a plain Debian where there is time for that."""

import importlib.util
import re
import shutil
import subprocess
import sys
import types

import pytest

from conftest import FULL, ROOT

DEFINITION = ROOT / "packaging/apptainer.def"
RECIPE = ROOT / "packaging/spack_repo/voltapile/packages/voltapile/package.py"
SECTIONS = {"arguments", "help", "files", "post", "environment", "test", "runscript"}
# What setup.sh installs to what the recipe asks for; None where Spack's Meson package does, or
# where only the tests in Python need it.
SPACK_NAMES = {
    "g++": "cxx",
    "pkg-config": None,
    "meson": "meson",
    "ninja-build": None,
    "libopenmpi-dev": "mpi",
    "openmpi-bin": "mpi",
    "libhdf5-dev": "hdf5",
    "zlib1g-dev": "zlib-api",
    "libxxhash-dev": "xxhash",
    "libhwloc-dev": "hwloc",
    "libdnnl-dev": "onednn",
    "liburing-dev": "liburing",
    "libpng-dev": "libpng",
    "libjpeg-dev": "jpeg",
    "libeigen3-dev": "eigen",
    "libtomlplusplus-dev": "tomlplusplus",
    "libspdlog-dev": "spdlog",
    "libfmt-dev": "fmt",
    "libcli11-dev": "cli11",
    "nlohmann-json3-dev": "nlohmann-json",
    "libgtest-dev": "googletest",
    "python3-pytest": None,
    "python3-h5py": None,
    "dataset-fashion-mnist": None,
}


def sections(arguments=None):
    """The definition's header, and its sections with the build arguments filled in."""
    text = DEFINITION.read_text()
    header, *rest = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    found = dict(zip(rest[::2], rest[1::2]))
    given = dict(
        line.strip().split("=", 1) for line in found["arguments"].split("\n") if "=" in line
    )
    given.update(arguments or {})
    fill = lambda part: re.sub(r"{{ (\w+) }}", lambda match: given[match[1]], part)
    return fill(header), {name: fill(part) for name, part in found.items()}


def packages():
    script = '. jobscripts/setup.sh && printf "%s\\n" "${voltapile_packages[@]}"'
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, text=True, capture_output=True)
    return done.stdout.split()


@pytest.mark.parametrize("arguments", [{}, {"BASE": "nvidia/cuda:12", "CUDA": "enabled"}])
def test_the_image_is_built_as_any_other_machine(arguments):
    header, parts = sections(arguments)
    assert header.split() == ["Bootstrap:", "docker", "From:", arguments.get("BASE", "debian:12")]
    assert set(parts) == SECTIONS
    for name in ("post", "environment", "test", "runscript"):
        done = subprocess.run(["sh", "-n"], input=parts[name], text=True, capture_output=True)
        assert done.returncode == 0, f"%{name}: {done.stderr}"
    # So it has the packages that everybody has; no list of its own to grow stale.
    assert "bash jobscripts/setup.sh" in parts["post"]
    assert "apt-get" not in parts["post"]
    assert f"-Dcuda={arguments.get('CUDA', 'disabled')}" in parts["post"]


def test_the_image_is_given_every_folder_that_the_build_reads(tmp_path):
    copy_files(tmp_path)
    for source in re.findall(r"subdir\('(\w+)'", (ROOT / "meson.build").read_text()):
        assert source == "tests" or (tmp_path / source).is_dir(), source
    for script in ("setup.sh", "build_cluster.sh"):
        assert (tmp_path / "jobscripts" / script).exists()


def copy_files(folder):
    for line in sections()[1]["files"].split("\n"):
        if not line.strip():
            continue
        source, target = line.split()
        assert target == "/opt/source/"
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / source)
        else:
            shutil.copy(ROOT / source, folder)


def test_the_images_commands_build_it_in_a_plain_debian(tmp_path):
    if not FULL:
        pytest.skip("installs a Debian and builds everything: VOLTAPILE_FULL=1")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs mmdebstrap")
    root = tmp_path / "root"
    made = ["mmdebstrap", "--variant=minbase", "bookworm", root]
    subprocess.run(made, check=True, capture_output=True, timeout=600)
    copy_files_into = root / "opt/source"
    copy_files_into.mkdir(parents=True)
    copy_files(copy_files_into)
    parts = sections()[1]
    for name in ("post", "test"):
        command = ["unshare", "-m", "chroot", root, "/bin/sh", "-ex"]
        text = "mount -t proc proc /proc\n" + parts[name]
        done = subprocess.run(command, input=text, text=True, capture_output=True)
        assert done.returncode == 0, f"%{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert (root / "opt/voltapile/share/voltapile/jobscripts/run_rank.sh").exists()


class Variants(dict):
    def __missing__(self, name):
        raise AssertionError(f"the recipe has no variant {name}")


class Spec:
    """As much of a Spack spec as the recipe asks."""

    def __init__(self, on, archs):
        self.on = on
        self.variants = Variants(cuda_arch=types.SimpleNamespace(value=archs))

    def __contains__(self, text):
        assert text[0] == "+" and re.fullmatch(r"\w+", text[1:]), text
        return text[1:] in self.on


class Recipe:
    """The recipe, loaded with stand-ins for Spack's names, which note what it says."""

    def __init__(self, monkeypatch):
        self.dependencies, self.variants, self.versions = {}, ["cuda", "cuda_arch"], []
        names = types.ModuleType("spack.package")
        names.license = names.conflicts = lambda *words, **options: None
        names.version = lambda name, **options: self.versions.append(name)
        names.variant = lambda name, **options: self.variants.append(name)
        names.depends_on = self.depends_on
        names.run_after = lambda phase: lambda function: function
        names.working_dir = names.Executable = names.join_path = names.install_tree = None
        names.__all__ = [name for name in vars(names) if not name.startswith("__")]
        modules = {"spack": types.ModuleType("spack"), "spack.package": names}
        for path in ("", ".builtin", ".builtin.build_systems"):
            modules["spack_repo" + path] = types.ModuleType("spack_repo" + path)
        for kind in ("Meson", "Cuda"):
            module = types.ModuleType(kind)
            setattr(module, kind + "Package", type(kind + "Package", (), {}))
            modules["spack_repo.builtin.build_systems." + kind.lower()] = module
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        spec = importlib.util.spec_from_file_location("voltapile_recipe", RECIPE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.package = module.Voltapile

    def depends_on(self, spec, when="", **options):
        self.dependencies[re.match(r"[\w-]+", spec)[0]] = when

    def meson_options(self, on=(), archs=("none",)):
        package = self.package()
        package.spec = Spec(on, archs)
        return dict(argument.removeprefix("-D").split("=") for argument in package.meson_args())


@pytest.fixture
def recipe(monkeypatch):
    return Recipe(monkeypatch)


def test_spack_installs_what_the_setup_script_installs(recipe):
    assert sorted(packages()) == sorted(SPACK_NAMES), "give the new package its name in Spack"
    expected = {name for name in SPACK_NAMES.values() if name}
    # Beyond Debian's: a compiler for C, toml++'s way to be found, and NCCL.
    assert set(recipe.dependencies) == expected | {"c", "cmake", "nccl"}
    optional = {
        "onednn": "+onednn",
        "liburing": "+io_uring",
        "nccl": "+cuda",
        "googletest": "+tests",
    }
    assert {name: when for name, when in recipe.dependencies.items() if when} == optional
    for when in optional.values():
        assert when[1:] in recipe.variants


def test_spacks_variants_are_options_of_the_build(recipe):
    options = (ROOT / "meson_options.txt").read_text()
    known = set(re.findall(r"option\('(\w+)'", options))
    plain = recipe.meson_options()
    assert plain == {
        "cpu_arch": "none",
        "cuda": "disabled",
        "onednn": "disabled",
        "io_uring": "disabled",
        "tests": "false",
    }
    full = recipe.meson_options({"cuda", "onednn", "io_uring", "tests"}, ("70", "90"))
    assert set(full) <= known
    assert full["gpu_arch"] == "70,90" and full["tests"] == "true"
    assert {full[name] for name in ("cuda", "onednn", "io_uring")} == {"enabled"}


def test_the_repository_has_the_layout_that_spack_expects(recipe):
    repository = (ROOT / "packaging/spack_repo/voltapile/repo.yaml").read_text()
    assert "namespace: voltapile" in repository and "api: v2" in repository
    assert recipe.package.__name__ == "Voltapile" and recipe.versions == ["main"]
