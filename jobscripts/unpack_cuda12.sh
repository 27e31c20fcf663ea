#!/usr/bin/env bash
# Lays CUDA 12.4 and NCCL 2.22 into a folder, without installing them and without root: CUDA 13 no
# longer compiles for Volta (sm_70). They are packages of Debian 13's non-free component, fetched
# through an apt configuration of its own; the system's sources and packages stay as they are.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. jobscripts/setup.sh

case ${1:-} in
  -h | --help)
    cat <<'END'
usage: jobscripts/unpack_cuda12.sh [FOLDER]

  FOLDER   where CUDA 12.4 is to lie (default: build-cuda12); 1.3 GB to download, 1.2 GB on disk

For Debian 12 and 13. A folder that is complete is left alone. Then:

  PATH=FOLDER/tk/bin:$PATH meson setup build-volta -Dcuda=enabled -Dgpu_arch=70
  ninja -C build-volta
END
    exit 0
    ;;
esac

prefix=$(realpath -m "${1:-build-cuda12}")
toolkit=$prefix/tk root=$prefix/root apt=$prefix/apt
if [ -x "$toolkit/bin/nvcc" ]; then
  say "CUDA 12.4 is in $toolkit already."
  exit 0
fi

mirror=$(cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null |
  sed -nE 's/^(URIs:|deb) +(\[[^]]*\] +)?([^ ]+).*/\3/p' | grep -m 1 '/debian/*$' || true)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$mirror" ] || [ ! -f $keyring ]; then
  say "Debian's archive is not among this machine's apt sources, so CUDA 12 cannot be fetched" \
    "through them. Install CUDA 12.4 to 12.9 and NCCL for it in another way, and put its nvcc" \
    "first on PATH."
  exit 1
fi

say "Fetching CUDA 12.4 from $mirror into $prefix (1.3 GB)"
mkdir -p "$apt"/{parts,lists/partial,cache/archives/partial} "$prefix/packages" "$root"
echo "deb [signed-by=$keyring] $mirror trixie main contrib non-free" >"$apt/parts/non-free.list"
cat >"$apt/apt.conf" <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$apt/parts";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt/cache";
APT::Sandbox::User "$(id -un)";
END
export APT_CONFIG=$apt/apt.conf
whole=(nvidia-cuda-toolkit libnvvm4 libcudart12 libcublaslt12 libcu++-dev libcub-dev
  libthrust-dev libnvtoolsext1 libnccl-dev libnccl2 libnvidia-ml-dev)
apt-get -qq update
(cd "$prefix/packages" && apt-get -qq download "${whole[@]}" nvidia-cuda-dev)

say "Unpacking"
for package in "${whole[@]}"; do dpkg-deb -x "$prefix/packages/$package"_*.deb "$root"; done
# Of this one, 3 GB of static libraries are not needed.
libraries=./usr/lib/x86_64-linux-gnu
dpkg-deb --fsys-tarfile "$prefix"/packages/nvidia-cuda-dev_*.deb |
  tar -x -C "$root" --wildcards './usr/include*' "$libraries/*.so" \
    "$libraries"/lib{cudart_static,cudadevrt,culibos}.a

# Debian spreads the Toolkit over /usr; nvcc finds its parts through nvcc.profile beside it.
mkdir -p "$toolkit/bin" "$toolkit/nvvm/bin"
home=$root/usr/lib/nvidia-cuda-toolkit
cp -a "$home/bin/crt" "$toolkit/bin/"
for tool in ptxas fatbinary cudafe++ nvlink bin2c cuobjdump nvdisasm; do
  cp -a "$root/usr/bin/$tool" "$toolkit/bin/"
done
cp -a "$home/bin/cicc" "$toolkit/nvvm/bin/"
cp -a "$home/libdevice" "$toolkit/nvvm/"
ln -sfn ../root/usr/include "$toolkit/include"
ln -sfn ../root/usr/lib/x86_64-linux-gnu "$toolkit/lib64"
cat >"$toolkit/bin/nvcc.profile" <<'END'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
CUDAFE_FLAGS +=
PTXAS_FLAGS +=
END
cp -a "$home/bin/nvcc" "$toolkit/bin/" # last: its presence says that the rest is there
rm -rf "$prefix/packages" "$apt"
say "CUDA 12.4 is in $toolkit. Its NCCL runs with glibc 2.38 or later (Debian 13): on an older" \
  "system, programs start with another libnccl.so.2 for CUDA 12 on LD_LIBRARY_PATH."
