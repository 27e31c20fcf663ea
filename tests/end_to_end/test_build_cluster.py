"""The build for clusters: a pack of headers that needs no network, and no root."""

import os
import shutil
import subprocess
import tarfile

import pytest

from conftest import FULL, ROOT

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


def test_an_unprivileged_user_installs_without_a_network(pack, tmp_path):
    if not FULL:
        pytest.skip("builds everything: VOLTAPILE_FULL=1")
    # The pack's headers, not this machine's: they are hidden from the build.
    folders = "eigen3 toml++ spdlog fmt CLI nlohmann"
    hide = f"for d in {folders}; do mount -t tmpfs none /usr/include/$d; done"
    build = f"{SCRIPT} --prefix {tmp_path}/v --pack {pack} -- -Dcuda=disabled -Donednn=disabled"
    user = "setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp"
    if run("unshare", "-mn", "true").returncode != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs the right to make a namespace")
    for folder in (tmp_path, pack.parent, *tmp_path.parents[:3]):
        folder.chmod(0o777)
    done = run("unshare", "-mn", "sh", "-c", f"{hide} && {user} {build}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert run(tmp_path / "v/bin/voltapile", "--version").returncode == 0
    assert (tmp_path / "v/share/voltapile/jobscripts/run_job.sh").exists()
