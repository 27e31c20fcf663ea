#!/usr/bin/env python3
"""Holds the rules of DESIGN that a compiler does not: who may include what, file and line lengths.

usage: check_style.py ROOT            all rules but formatting; one fault a line, exit 1 if any
       check_style.py --format ROOT   clang-format 14, exit 77 (skipped) where it is not installed
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE_FOLDERS = ("src", "include", "cuda_kernels", "tests", "tools", "jobscripts", "input_decks",
                  "packaging")
CPP = {".cpp", ".hpp", ".h", ".c", ".cu", ".cuh"}
CHECKED = CPP | {".py", ".sh", ".sbatch", ".toml"}
MOST_LINES, MOST_COLUMNS = 400, 100
SKIPPED = 77  # Meson's exit code for a skipped test

# Third-party headers and the places where they may be included (DESIGN section 2). A place that
# ends in "/" is a folder, in "*" the beginning of a file name, else a file.
HOMES = (
    (r"mpi(-ext)?\.h", ("src/comm/mpi_*", "src/main.cpp")),
    (r"(cu(da|blas|blasLt|rand|dnn|solver|sparse|fft)?(\w*)\.h|nvml\.h|nccl\.h|nvjpeg\.h|mma\.h"
     r"|nvtx3?/.*|nvToolsExt\.h|cooperative_groups.*|cuda/.*|cub/.*|thrust/.*|cutlass/.*)",
     ("cuda_kernels/",)),
    (r"(hdf5(_hl)?|H5\w*)\.h", ("src/h5/",)),
    (r"(Eigen|unsupported/Eigen)/.*", ("src/device/cpu/",)),
    (r"(oneapi/)?dnnl\w*(/.*)?\.hp?p?", ("src/device/cpu/",)),
    (r"toml\+\+/.*|toml\.hpp", ("src/deck/",)),
    (r"xxhash\.h", ("src/checkpoint/",)),
    (r"(jpeglib|jerror|turbojpeg|png|archive|archive_entry|zlib)\.h", ("src/data/",)),
    (r"(hwloc(/.*)?|liburing(/.*)?)\.h", ("src/device/host/",)),
    (r"nlohmann/.*", ("src/checkpoint/", "src/report/", "src/train/")),
    (r"CLI/.*|CLI11\.hpp", ("src/main.cpp", "src/command_line.hpp")),
    (r"spdlog/.*", ("src/base/",)),
    (r"fmt/.*", ("src/base/", "include/voltapile/base/")),
    (r"g(test|mock)/.*", ("tests/",)),
)
# Neither third-party nor without a suffix: C, POSIX, Linux, and the compiler's intrinsics.
SYSTEM = re.compile(
    r"(assert|ctype|cxxabi|elf|errno|fcntl|float|inttypes|limits|math|poll|pthread|sched|signal"
    r"|stdarg|stddef|stdint|stdio|stdlib|string|strings|time|unistd|dlfcn|dirent|execinfo|fnmatch"
    r"|glob|ifaddrs|libgen|link|locale|malloc|netdb|pwd|semaphore|spawn|syslog|termios|wchar"
    r"|\w*intrin"
    r"|arm_neon|cpuid|(sys|linux|netinet|arpa|sanitizer|asm|bits)/[\w/]+)\.h")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA_CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|NVCC|NCCL|CUBLAS)")
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def read_layers(root):
    """Module name to its place in the order."""
    lines = (root / "tests/style/layers.txt").read_text().splitlines()
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return {name: place for place, name in enumerate(names)}


def module_of(path):
    """Module of a source file's path (relative, with slashes), or None for tests and the like."""
    parts = path.split("/")
    if path.startswith("include/voltapile/") and len(parts) > 3:
        return parts[2]
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else "app"
    if parts[0] == "cuda_kernels":
        return "comm"  # it implements both seams, Device and Communicator
    return None


def is_home(path, home):
    if home.endswith("/"):
        return path.startswith(home)
    if home.endswith("*"):
        return path.startswith(home[:-1])
    return path == home


def check_module_include(path, module, header, layers):
    """A public header: "voltapile/<module>/<name>.hpp"."""
    if module is None:
        return None
    parts = header.split("/")
    other = parts[1] if len(parts) > 2 else ""
    if other not in layers:
        return f'"{header}": tests/style/layers.txt has no module "{other}"'
    if module not in layers:
        return f'module "{module}" of this file is not in tests/style/layers.txt'
    if layers[other] > layers[module]:
        return f'"{header}": {module} may not include {other}, which is above it in layers.txt'
    return None


def find_private(root, path, own, header):
    """The file that a quoted include means, or None (a generated one, say)."""
    for start in ((root / path).parent, root / "src" / own, root / "cuda_kernels"):
        if (start / header).is_file():
            return (start / header).resolve()
    return next(iter(sorted(root.glob(f"src/*/{header}"))), None)


def check_private_include(root, path, module, header):
    """A private header beside its sources: "name.hpp"."""
    if path.startswith("include/"):
        return f'"{header}": a public header may include public headers only'
    own = path.split("/")[2] if path.startswith("tests/unit/") else module
    target = find_private(root, path, own or "", header)
    if target is None:
        return None
    if root not in target.parents:
        return f'"{header}": outside of the repository'
    place = target.relative_to(root).as_posix()
    if place.startswith("include/"):
        return f'"{header}": write "voltapile/..."'
    if place.startswith("src/") and module_of(place) != own:
        return f'"{header}": private to {module_of(place)}; include its public header instead'
    return None


def check_system_include(path, header):
    """A header in angle brackets."""
    for pattern, homes in HOMES:
        if re.fullmatch(pattern, header):
            # Tests may look at results with whatever they like.
            if path.startswith("tests/") or any(is_home(path, home) for home in homes):
                return None
            return f"<{header}>: third-party; its home is {' or '.join(homes)}"
    if re.fullmatch(r"[a-z_0-9]+", header) or SYSTEM.fullmatch(header):
        return None
    if header.startswith("voltapile/"):
        return f"<{header}>: write our own headers in quotes"
    return f"<{header}>: third-party without a home: name one in DESIGN and in check_style.py"


def without_comments(lines):
    """The lines of a C++ text, comments blanked; strings are left alone, well enough for this."""
    inside = False
    for line in lines:
        if inside:
            if "*/" not in line:
                yield ""
                continue
            line, inside = line.split("*/", 1)[1], False
        line = re.sub(r"/\*.*?\*/", "", line)
        if re.match(r"[^\"']*/\*", line):
            line, inside = line.split("/*", 1)[0], True
        yield re.sub(r"^([^\"']*?)//.*", r"\1", line)


def check_cpp(root, path, lines, layers):
    module = module_of(path)
    faults = []
    for number, line in enumerate(without_comments(lines), 1):
        if CUDA_CONDITION.match(line) and not path.startswith("cuda_kernels/"):
            faults.append((number, "a condition on CUDA: only cuda_kernels/ may have one"))
        include = INCLUDE.match(line)
        if not include:
            continue
        bracket, header = include.groups()
        if bracket == "<":
            fault = check_system_include(path, header)
        elif header.startswith("voltapile/"):
            fault = check_module_include(path, module, header, layers)
        elif any(re.fullmatch(pattern, header) for pattern, _ in HOMES):
            fault = check_system_include(path, header)
        else:
            fault = check_private_include(root, path, module, header)
        if fault:
            faults.append((number, fault))
    if Path(path).suffix in (".hpp", ".h", ".cuh") and "#pragma once" not in (
            line.strip() for line in lines):
        faults.append((1, "a header needs #pragma once"))
    return faults


def types_of(lines):
    """(number, qualified name) of each type defined where another file could define it too."""
    spaces = []
    for number, line in enumerate(lines, 1):
        opened = re.match(r"namespace( [\w:]+)? \{", line)
        if opened:
            spaces.append(opened.group(1))
        elif spaces and line.startswith("}  // namespace"):
            spaces.pop()
        defined = re.match(r"(?:struct|class|enum class) (\w+)(?: final)?(?: : [^;]*)? \{", line)
        if defined and None not in spaces:
            yield number, "::".join(space.strip() for space in spaces) + "::" + defined.group(1)


def sources(root, suffixes):
    measured = root / "input_decks" / "hardware"  # written by `voltapile bench`, not by hand
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            written = "__pycache__" not in path.parts and measured not in path.parents
            if path.suffix in suffixes and path.is_file() and written:
                yield path


def check(root):
    """All faults below `root`, as "path:line: what"."""
    root = Path(root).resolve()
    layers = read_layers(root)
    result = []
    types = {}
    for file in sources(root, CHECKED):
        path = file.relative_to(root).as_posix()
        if path.startswith("tests/fuzz/corpus/"):
            continue  # inputs, broken on purpose
        lines = file.read_text(encoding="utf-8").split("\n")
        if lines[-1] == "":
            lines.pop()
        faults = []
        if len(lines) > MOST_LINES:
            what = f"{len(lines)} lines: split what grows past {MOST_LINES}"
            faults.append((MOST_LINES + 1, what))
        for number, line in enumerate(lines, 1):
            if len(line) > MOST_COLUMNS:
                faults.append((number, f"{len(line)} columns: at most {MOST_COLUMNS}"))
            if UNFINISHED.search(line):
                faults.append((number, "a note of unfinished work: finish it or open an issue"))
        if file.suffix in CPP:
            faults += check_cpp(root, path, lines, layers)
        if file.suffix in CPP and path.startswith(("include/", "src/", "cuda_kernels/")):
            for number, name in types_of(lines):
                first = types.setdefault(name, path)
                if first != path:
                    what = f"{name} is another type in {first}: the linker takes one for both"
                    faults.append((number, what))
        result += [f"{path}:{number}: {what}" for number, what in sorted(faults)]
    return result


def clang_format_14():
    """The program's name, or the reason why there is none."""
    found = []
    for name in ("clang-format-14", "clang-format"):
        if shutil.which(name):
            version = subprocess.run([name, "--version"], capture_output=True, text=True).stdout
            found.append(version.strip())
            if re.search(r"version 14\.", version):
                return name, ""
    return None, f"clang-format 14 is needed; found {', '.join(found) if found else 'none'}"


def check_format(root):
    root = Path(root).resolve()
    program, reason = clang_format_14()
    if program is None:
        print(f"skipped: {reason}")
        return SKIPPED
    files = [str(path) for path in sources(root, CPP)]
    if not files:
        return 0
    run = subprocess.run([program, "--dry-run", "--Werror", "--ferror-limit=1", "--style=file",
                          *files], capture_output=True, text=True)
    if run.returncode != 0:
        print("\n".join(line for line in run.stderr.splitlines() if "error:" in line))
        print(f"run: {program} -i FILE")
    return 1 if run.returncode else 0


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--format":
        return check_format(arguments[1])
    if len(arguments) != 1:
        print(__doc__)
        return 2
    faults = check(arguments[0])
    print("\n".join(faults) if faults else "no faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
