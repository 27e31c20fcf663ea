"""Spack's recipe, for Spack 1.0 and later. In the top folder, the sources at hand are built:

spack repo add packaging/spack_repo/voltapile
spack dev-build voltapile@main +cuda cuda_arch=70 ^cuda@12
"""

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.meson import MesonPackage

from spack.package import *


class Voltapile(MesonPackage, CudaPackage):
    """Trains Vision Transformers with pipeline, data and tensor parallelism over MPI ranks, on
    GPUs too small for the model."""

    license("Apache-2.0")

    version("main")

    variant("tests", default=False, description="Build the tests; --test=root runs the unit tests")
    variant("onednn", default=False, description="oneDNN for f32 matrix products on CPUs")
    variant("io_uring", default=True, description="io_uring for the NVMe home of the state")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("meson@1.0:", type="build")
    # toml++ brings a file for CMake, not one for pkg-config; Meson asks this for it.
    depends_on("cmake", type="build")

    depends_on("mpi")
    depends_on("hdf5 ~mpi")
    depends_on("zlib-api")
    depends_on("libpng")
    depends_on("jpeg")
    depends_on("xxhash")
    depends_on("hwloc")
    depends_on("eigen@3.4:3")
    depends_on("tomlplusplus@3.3:")
    depends_on("fmt")
    depends_on("spdlog +fmt_external")
    depends_on("cli11")
    depends_on("nlohmann-json")
    depends_on("onednn", when="+onednn")
    depends_on("liburing", when="+io_uring")
    depends_on("nccl", when="+cuda")
    depends_on("googletest", when="+tests", type="build")

    conflicts("%gcc@:10", msg="C++20 needs GCC 11 or later")
    conflicts(
        "cuda_arch=none", when="+cuda", msg="name the GPUs: cuda_arch=70 is a V100, 90 an H100"
    )
    conflicts("^cuda@13:", when="cuda_arch=70", msg="CUDA 13 has no V100: ^cuda@12")

    def meson_args(self):
        def feature(name):
            return "enabled" if f"+{name}" in self.spec else "disabled"

        arguments = [
            # Spack's compiler wrapper names the instruction set of the target.
            "-Dcpu_arch=none",
            f"-Dcuda={feature('cuda')}",
            f"-Donednn={feature('onednn')}",
            f"-Dio_uring={feature('io_uring')}",
            f"-Dtests={'true' if '+tests' in self.spec else 'false'}",
        ]
        if "+cuda" in self.spec:
            archs = ",".join(self.spec.variants["cuda_arch"].value)
            arguments.append(f"-Dgpu_arch={archs}")
        return arguments

    def check(self):
        # The others start mpirun and Slurm, which a build's sandbox may not.
        if "+tests" in self.spec:
            with working_dir(self.build_directory):
                Executable("meson")("test", "--suite", "unit")

    @run_after("install")
    def install_shared_files(self):
        share = join_path(self.prefix.share, "voltapile")
        for folder in ("jobscripts", "input_decks"):
            install_tree(join_path(self.stage.source_path, folder), join_path(share, folder))
