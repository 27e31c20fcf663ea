"""The build for clusters: a pack of headers that needs no network, and no root."""

import os
import re
import shutil
import subprocess
import tarfile

import pytest

from conftest import DECK, FULL, ROOT

SCRIPT = ROOT / "jobscripts/build_cluster.sh"
LIBRARIES = {
    "eigen3": "Eigen/Core",
    "tomlplusplus": "toml++/toml.h",
    "fmt": "fmt/core.h",
    "spdlog": "spdlog/spdlog.h",
    "CLI11": "CLI/CLI.hpp",
    "nlohmann_json": "nlohmann/json.hpp",
    "libxxhash": "xxhash.h",
}


def run(*command, **options):
    return subprocess.run(list(map(str, command)), text=True, capture_output=True, **options)


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    file = tmp_path_factory.mktemp("pack") / "pack.tar.gz"
    done = run(SCRIPT, "--fetch", file)
    assert done.returncode == 0, done.stderr
    return file


def test_a_pack_has_every_header_library_and_works_from_any_folder(pack, tmp_path):
    with tarfile.open(pack) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "pack"
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder / "lib/pkgconfig")}
    for name, header in LIBRARIES.items():
        flags = run("pkg-config", "--cflags", "--libs", name, env=environment).stdout.split()
        assert [flag for flag in flags if flag.startswith("-l")] == [], name
        includes = [flag[2:] for flag in flags if flag.startswith("-I")]
        assert any(os.path.exists(f"{place}/{header}") for place in includes), name
        assert all(os.path.realpath(place).startswith(str(folder)) for place in includes), name
    assert run(folder / "tools/meson", "--version", cwd="/").stdout[0].isdigit()
    assert run(folder / "tools/ninja", "--version").returncode == 0


def test_mistakes_are_said(tmp_path):
    assert run(SCRIPT).returncode == 2
    assert run(SCRIPT, "--prefix").returncode == 2
    (tmp_path / "file").write_text("")
    done = run(SCRIPT, "--prefix", tmp_path / "file/below")
    assert done.returncode == 1 and "--prefix" in done.stderr


# Debian's MPICH and the HDF5 that is built for it, laid out apart from the machine's own.
SITE = (
    "mpich libmpich-dev libmpich12 libhdf5-mpich-dev libhdf5-mpich-103-1 libucx-dev libucx0 "
    "libslurm38"
)
LIBRARY = "usr/lib/x86_64-linux-gnu"
# What this machine has besides: the site's HDF5 and MPI must do without.
HIDDEN = [f"/{LIBRARY}/hdf5", f"/{LIBRARY}/openmpi", "/usr/include/hdf5"]
HEADERS = [f"/usr/include/{name}" for name in "eigen3 toml++ spdlog fmt CLI nlohmann".split()]
UNITS = ["base/base_test", "h5/h5_test", "comm/comm_operations", "checkpoint/checkpoint_test"]


@pytest.fixture
def site(tmp_path):
    """A prefix with another MPI and another HDF5, and the file that a job would source."""
    folder = tmp_path / "site"
    (folder / "packages").mkdir(parents=True)
    done = run("apt-get", "download", *SITE.split(), cwd=folder / "packages")
    if done.returncode != 0:
        pytest.skip("Debian's packages are not to be had: " + done.stderr)
    for package in (folder / "packages").iterdir():
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    commands, configured = folder / "usr/bin", folder / "pkgconfig"
    for name in ("mpicc", "mpirun"):
        (commands / name).symlink_to(f"{name}.mpich")
    moved = [commands / "mpicc.mpich"]
    configured.mkdir()
    shutil.copy(folder / LIBRARY / "pkgconfig/hdf5-mpich.pc", configured / "hdf5.pc")
    shutil.copy(folder / LIBRARY / "pkgconfig/mpich.pc", configured)
    for file in [*moved, *configured.iterdir()]:
        file.write_text(re.sub(r"/usr(?=/|$)", f"{folder}/usr", file.read_text(), flags=re.M))
    for name in ("zlib", "hwloc", "gtest", "gtest_main"):
        path = run("pkg-config", "--path", name).stdout.strip()
        shutil.copy(path or f"/{LIBRARY}/pkgconfig/{name}.pc", configured)
    environment = folder / "environment.sh"
    environment.write_text(
        f"export PATH={commands}:$PATH PKG_CONFIG_LIBDIR={configured}\n"
        f"export LD_LIBRARY_PATH={folder}/{LIBRARY}\n"
    )
    return environment


def without_network(command, hidden):
    """As nobody, with no network, and without what is hidden of this machine."""
    hide = " && ".join(f"mount -t tmpfs none {folder}" for folder in hidden)
    user = "setpriv --reuid=65534 --regid=65534 --clear-groups env -u CCACHE_DIR HOME=/tmp"
    done = run("unshare", "-mn", "sh", "-c", f"{hide} && ip link set lo up && {user} {command}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(not FULL, reason="builds everything: VOLTAPILE_FULL=1")
@pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("setpriv") is None
    or run("unshare", "-mn", "true").returncode,
    reason="needs the right to make a namespace",
)
def test_an_unprivileged_user_installs_without_a_network_for_another_mpi_and_hdf5(
    pack, site, tmp_path
):
    for folder in (tmp_path, pack.parent, *tmp_path.parents[:2]):  # never /tmp itself
        folder.chmod(0o777)
    options = "-Dcuda=disabled -Donednn=disabled -Dio_uring=disabled"
    prefix, hidden = tmp_path / "v", HIDDEN + HEADERS
    build = f"{SCRIPT} --prefix {prefix} --pack {pack} --env {site} -- {options}"
    without_network(build, hidden)
    program = prefix / "bin/voltapile"
    assert (prefix / "share/voltapile/jobscripts/run_job.sh").exists()
    linked = without_network(f"sh -c '. {site} && ldd {program}'", hidden)
    assert "libhdf5_mpich" in linked and "libmpich" in linked
    assert "libmpi.so" not in linked and "libhdf5_serial" not in linked

    # The tests of what stands on these libraries, and a run under that MPI's own mpirun.
    share = prefix / "share/voltapile"
    targets = " ".join(f"tests/unit/{unit}" for unit in UNITS)
    names = " ".join(unit.split("/")[1] for unit in UNITS)
    script = tmp_path / "tests.sh"
    script.write_text(f"""set -ex
. {site}
export PKG_CONFIG_PATH={share}/pack/lib/pkgconfig PATH=$PATH:{share}/pack/tools
meson setup {tmp_path}/build {ROOT} {options} -Dcpu_arch=x86-64-v3
ninja -C {tmp_path}/build {targets}
meson test -C {tmp_path}/build --no-rebuild --timeout-multiplier 20 {names}
cd {tmp_path}
mpirun -n 4 {program} train deck.toml
{program} verify runs/small
""")
    (tmp_path / "deck.toml").write_text(DECK)
    out = without_network(f"bash {script}", hidden)
    assert re.search(rf"^Ok: +{len(UNITS)}\s*$", out, re.M)
    assert re.search(r"^Fail: +0\s*$", out, re.M)
    assert "pp2 x dp2" in out and "good." in out
