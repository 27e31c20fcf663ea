#!/usr/bin/env python3
"""The style check must find each kind of fault: small trees, each with one fault planted."""
import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import check_style

LAYERS = "# order\nbase\ndeck\ndevice\ncomm\ntrain\napp\n"


class PlantedFaults(unittest.TestCase):
    def faults(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in {"tests/style/layers.txt": LAYERS, **files}.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check_style.check(root)

    def assert_one(self, files, start, part):
        faults = self.faults(files)
        self.assertEqual(len(faults), 1, faults)
        self.assertTrue(faults[0].startswith(start), faults[0])
        self.assertIn(part, faults[0])

    def test_a_good_tree_has_no_faults(self):
        self.assertEqual(self.faults({
            "include/voltapile/base/error.hpp":
                "#pragma once\n#include <string>\n#include <fmt/core.h>\n",
            "include/voltapile/deck/deck.hpp":
                '#pragma once\n#include "voltapile/base/error.hpp"\n',
            "src/deck/rows.hpp": "#pragma once\n",
            "src/deck/parse.cpp": '#include "voltapile/deck/deck.hpp"\n#include <toml++/toml.h>\n'
                                  '#include <sys/stat.h>\n#include "rows.hpp"\n',
            "src/device/cpu/gemm.hpp": "#pragma once\n",
            "src/device/cpu/gemm.cpp": '#include <Eigen/Core>\n#include "cpu/gemm.hpp"\n',
            "src/comm/mpi_world.cpp": "#include <mpi.h>\n",
            "src/main.cpp": '#include <CLI/CLI.hpp>\n#include "voltapile/train/train.hpp"\n',
            "cuda_kernels/norm.cu": "#include <cuda_runtime.h>\n#if CUDA_VERSION > 12000\n#endif\n",
            "tests/unit/deck/t.cpp": '#include <gtest/gtest.h>\n#include "rows.hpp"\n'
                                     '#include "voltapile/train/train.hpp"\n',
        }), [])

    def test_include_against_the_order(self):
        self.assert_one({"src/deck/a.cpp": '#include <string>\n#include "voltapile/train/t.hpp"\n'},
                        "src/deck/a.cpp:2:", "deck may not include train")
        self.assert_one({"include/voltapile/base/a.hpp":
                         '#pragma once\n#include "voltapile/deck/deck.hpp"\n'},
                        "include/voltapile/base/a.hpp:2:", "base may not include deck")
        self.assert_one({"cuda_kernels/a.cu": '#include "voltapile/train/t.hpp"\n'},
                        "cuda_kernels/a.cu:1:", "comm may not include train")

    def test_two_types_of_one_name(self):
        ends = "\n\n}  // namespace"
        piece = "\nstruct Piece {\n  int a;\n};"
        text = f"#pragma once\nnamespace voltapile {{\n{piece}{ends} voltapile\n"
        hidden = f"namespace voltapile {{\nnamespace {{\n{piece}{ends}{ends} voltapile\n"
        self.assert_one({"src/base/a.hpp": text, "src/deck/b.hpp": text, "src/deck/c.cpp": hidden},
                        "src/deck/b.hpp:4:", "another type in src/base/a.hpp")

    def test_module_outside_the_order(self):
        self.assert_one({"src/deck/a.cpp": '#include "voltapile/extra/t.hpp"\n'},
                        "src/deck/a.cpp:1:", 'no module "extra"')
        self.assert_one({"src/extra/a.cpp": '#include "voltapile/base/error.hpp"\n'},
                        "src/extra/a.cpp:1:", "not in tests/style/layers.txt")

    def test_third_party_outside_its_home(self):
        for header in ("mpi.h", "toml++/toml.h", "Eigen/Core", "hdf5.h", "nlohmann/json.hpp",
                       "spdlog/spdlog.h", "CLI/CLI.hpp", "cuda_runtime.h", "nccl.h", "dnnl.h",
                       "dnnl.hpp", "oneapi/dnnl/dnnl.hpp", "png.h", "zlib.h", "hwloc.h",
                       "fmt/core.h", "cublas_v2.h", "gtest/gtest.h"):
            with self.subTest(header=header):
                self.assert_one({"src/trace/a.cpp": f"#include <{header}>\n"},
                                "src/trace/a.cpp:1:", "its home is")
        self.assert_one({"src/comm/thread.cpp": '#include "mpi.h"\n'},
                        "src/comm/thread.cpp:1:", "its home is src/comm/mpi_*")

    def test_third_party_without_a_home(self):
        self.assert_one({"src/train/a.cpp": "#include <boost/any.hpp>\n"},
                        "src/train/a.cpp:1:", "without a home")

    def test_private_header_of_another_module(self):
        private = {"src/deck/rows.hpp": "#pragma once\n"}
        self.assert_one({**private, "src/train/a.cpp": '#include "../deck/rows.hpp"\n'},
                        "src/train/a.cpp:1:", "private to deck")
        self.assert_one({**private, "src/train/a.cpp": '#include "rows.hpp"\n'},
                        "src/train/a.cpp:1:", "private to deck")
        self.assert_one({**private, "tests/unit/train/a.cpp":
                         '#include "../../../src/deck/rows.hpp"\n'},
                        "tests/unit/train/a.cpp:1:", "private to deck")
        self.assert_one({"include/voltapile/deck/deck.hpp": '#pragma once\n#include "rows.hpp"\n'},
                        "include/voltapile/deck/deck.hpp:2:", "public headers only")

    def test_condition_on_cuda(self):
        for line in ("#ifdef VOLTAPILE_CUDA", "#if defined(__CUDACC__)", "#  ifndef HAVE_NCCL",
                     "#elif USE_CUDA"):
            with self.subTest(line=line):
                self.assert_one({"src/device/a.cpp": f"\n{line}\n"}, "src/device/a.cpp:2:", "CUDA")

    def test_long_files_and_lines(self):
        self.assert_one({"src/base/a.cpp": "\n" * 401}, "src/base/a.cpp:401:", "401 lines")
        self.assertEqual(self.faults({"src/base/a.cpp": "\n" * 400}), [])
        self.assert_one({"tools/a.py": "x = 1\n" + "#" * 101 + "\n"},
                        "tools/a.py:2:", "101 columns")
        self.assertEqual(self.faults({"tools/a.py": "#" * 100 + "\n"}), [])

    def test_unfinished_work(self):
        self.assert_one({"src/base/a.cpp": "// TO" "DO: later\n"},
                        "src/base/a.cpp:1:", "unfinished")

    def test_header_without_guard(self):
        self.assert_one({"src/base/a.hpp": "int a;\n"}, "src/base/a.hpp:1:", "#pragma once")

    def test_comments_are_not_code(self):
        text = "// #include <mpi.h>\n/*\n#include <mpi.h>\n#ifdef CUDA\n*/\n"
        self.assertEqual(self.faults({"src/base/a.cpp": text}), [])

    def test_the_program_reports_and_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "tests/style").mkdir(parents=True)
            (root / "tests/style/layers.txt").write_text(LAYERS)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(check_style.main([folder]), 0)
            (root / "src/base").mkdir(parents=True)
            (root / "src/base/a.cpp").write_text("#include <mpi.h>\n")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(check_style.main([folder]), 1)
            self.assertIn("src/base/a.cpp:1: <mpi.h>", out.getvalue())

    @unittest.skipIf(check_style.clang_format_14()[0] is None, check_style.clang_format_14()[1])
    def test_badly_formatted_file(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "src").mkdir()
            (root / ".clang-format").write_text("BasedOnStyle: Google\n")
            (root / "src/a.cpp").write_text("int a = 1;\n")
            self.assertEqual(check_style.check_format(folder), 0)
            (root / "src/a.cpp").write_text("int  a=1;\n")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(check_style.check_format(folder), 1)
            self.assertIn("src/a.cpp:1:", out.getvalue())


if __name__ == "__main__":
    unittest.main()
