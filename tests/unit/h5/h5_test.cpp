// The HDF5 handles against real files.
#include "voltapile/h5/h5.hpp"

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace voltapile::h5 {
namespace {

class H5 : public ::testing::Test {
 protected:
  H5() {
    std::string pattern = (std::filesystem::temp_directory_path() / "vp_h5_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~H5() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

// The Error that `f` must throw.
template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) { return error; }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ExitCode::done, "");
}

std::vector<float> counting(int64_t n, float from = 0) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), from);
  return values;
}

void write_floats(const std::filesystem::path& path, const std::string& name,
                  const std::vector<float>& values) {
  File file = File::create(path);
  file.create_dataset(name, DType::f32, Shape{static_cast<int64_t>(values.size())})
      .write(values.data(), DType::f32);
  file.close();
}

TEST_F(H5, AttributesKeepEveryBitOfTheirType) {
  const std::string long_text(200'000, 'x');  // beyond the 64 KiB of the oldest file format
  {
    File file = File::create(folder_ / "a.h5");
    {
      Group group = file.create_group("g");
      group.set_attribute("negative", int64_t{-5});
      group.set_attribute("seed", uint64_t{0xFFFFFFFFFFFFFFFFu});
      group.set_attribute("scale", 0.1);
      group.set_attribute("text", std::string_view("a = \"\xC3\xA9\"\n"));
      group.set_attribute("empty", std::string_view(""));
      group.set_attribute("long", std::string_view(long_text));
    }
    file.close();
  }
  const File file = File::open(folder_ / "a.h5");
  const Group group = file.open_group("g");
  EXPECT_EQ(group.int_attribute("negative"), -5);
  EXPECT_EQ(group.uint_attribute("seed"), 0xFFFFFFFFFFFFFFFFu);
  EXPECT_EQ(group.double_attribute("scale"), 0.1);
  EXPECT_EQ(group.text_attribute("text"), "a = \"\xC3\xA9\"\n");
  EXPECT_EQ(group.text_attribute("empty"), "");
  EXPECT_EQ(group.text_attribute("long"), long_text);
  EXPECT_TRUE(group.has_attribute("scale"));
  EXPECT_FALSE(group.has_attribute("absent"));
  EXPECT_EQ(error_of([&] { group.int_attribute("scale"); }).code(), ExitCode::bad_data);
  EXPECT_EQ(error_of([&] { group.int_attribute("absent"); }).code(), ExitCode::bad_data);
  EXPECT_EQ(error_of([&] { group.text_attribute("negative"); }).code(), ExitCode::bad_data);
}

TEST_F(H5, EveryElementTypeComesBack) {
  const std::vector<float> f32 = {1.5f, -0.0f, INFINITY};
  const std::vector<double> f64 = {0.1, 1e300, -2};
  const std::vector<uint8_t> u8 = {0, 255, 7};
  const std::vector<int32_t> i32 = {INT32_MIN, 0, INT32_MAX};
  const std::vector<int64_t> i64 = {INT64_MIN, 0, INT64_MAX};
  {
    File file = File::create(folder_ / "a.h5");
    file.create_dataset("f32", DType::f32, Shape{3}).write(f32.data(), DType::f32);
    file.create_dataset("f64", DType::f64, Shape{3}).write(f64.data(), DType::f64);
    file.create_dataset("u8", DType::u8, Shape{3}).write(u8.data(), DType::u8);
    file.create_dataset("i32", DType::i32, Shape{3}).write(i32.data(), DType::i32);
    file.create_dataset("i64", DType::i64, Shape{3}).write(i64.data(), DType::i64);
    file.create_dataset("none", DType::f32, Shape{0}).write(f32.data(), DType::f32);
    file.close();
  }
  const File file = File::open(folder_ / "a.h5");
  const auto same = [&]<class T>(const char* name, const std::vector<T>& wanted) {
    std::vector<T> got(3);
    file.open_dataset(name).read(got.data(), dtype_of<T>::value);
    return got == wanted;
  };
  EXPECT_TRUE(same("f32", f32));
  EXPECT_TRUE(same("f64", f64));
  EXPECT_TRUE(same("u8", u8));
  EXPECT_TRUE(same("i32", i32));
  EXPECT_TRUE(same("i64", i64));
  EXPECT_EQ(file.open_dataset("none").shape(), Shape{0});
  EXPECT_EQ(file.names(), (std::vector<std::string>{"f32", "f64", "i32", "i64", "none", "u8"}));
  EXPECT_TRUE(file.exists("f32"));
  EXPECT_FALSE(file.exists("f16"));
}

TEST_F(H5, ABoxIsReadInRowMajorOrder) {
  const Shape shape{3, 4, 5};
  {
    File file = File::create(folder_ / "a.h5");
    file.create_dataset("x", DType::f32, shape).write(counting(60).data(), DType::f32);
    file.close();
  }
  const File file = File::open(folder_ / "a.h5");
  const Dataset x = file.open_dataset("x");
  EXPECT_EQ(x.shape(), shape);
  std::vector<float> got(8);
  x.read_box({Shape{1, 1, 2}, Shape{2, 2, 2}}, got.data(), DType::f32);
  EXPECT_EQ(got, (std::vector<float>{27, 28, 32, 33, 47, 48, 52, 53}));
  const Error outside = error_of([&] {
    x.read_box({Shape{2, 0, 0}, Shape{2, 4, 5}}, got.data(), DType::f32);
  });
  EXPECT_EQ(outside.code(), ExitCode::bad_data);
}

TEST_F(H5, MetadataHasChecksums) {
  write_floats(folder_ / "a.h5", "x", counting(10));
  std::ifstream raw(folder_ / "a.h5", std::ios::binary);
  raw.seekg(8);
  EXPECT_GE(raw.get(), 2) << "superblock version";
}

TEST_F(H5, AVirtualDatasetShowsItsPartsAndNaNElsewhere) {
  write_floats(folder_ / "p0.h5", "x", counting(8));
  write_floats(folder_ / "p1.h5", "x", counting(4, 100));
  {
    File file = File::create(folder_ / "v.h5");
    // Columns 1 and 2 of rows 0..2 from p0, column 0 of rows 0..2 from p1.
    const std::vector<VirtualPart> parts = {{"p0.h5", "/x", 8, 1, {Shape{0, 1}, Shape{3, 2}}},
                                            {"p1.h5", "/x", 4, 1, {Shape{0, 0}, Shape{3, 1}}}};
    file.create_group("whole").create_virtual("w", Shape{4, 3}, parts);
    file.create_group("alias").link("again", "/whole/w");
    file.close();
  }
  const auto read = [&](const char* group, const char* name) {
    std::vector<float> got(12);
    const File file = File::open(folder_ / "v.h5");
    const Group parent = file.open_group(group);
    parent.open_dataset(name).read(got.data(), DType::f32);
    return got;
  };
  std::vector<float> got = read("whole", "w");
  const std::vector<float> wanted = {101, 1, 2, 102, 3, 4, 103, 5, 6};
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 9), wanted);
  for (size_t i = 9; i < 12; ++i) EXPECT_TRUE(std::isnan(got[i]));
  got = read("alias", "again");
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 9), wanted);

  // A source that is open elsewhere in this process must not read as absent.
  {
    const File source = File::open(folder_ / "p1.h5");
    got = read("whole", "w");
    EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 9), wanted);
  }

  // HDF5 says nothing when a source is gone, which is why the fill value must show.
  std::filesystem::remove(folder_ / "p1.h5");
  got = read("whole", "w");
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_EQ(got[1], 1);
}

TEST_F(H5, ATableComesBackByColumnName) {
  struct Row {
    char file[16];
    int64_t bytes;
    float share;
  };
  const std::vector<Field> fields = {{"file", DType::u8, 16, offsetof(Row, file)},
                                     {"bytes", DType::i64, 0, offsetof(Row, bytes)},
                                     {"share", DType::f32, 0, offsetof(Row, share)}};
  std::vector<Row> rows = {{"shard_00000.h5", 12, 0.5f}, {"", -1, 0.25f}};
  std::memcpy(rows[1].file, "exactly16letters", 16);
  {
    File file = File::create(folder_ / "a.h5");
    file.write_table("t", fields, sizeof(Row), rows.data(), 2);
    file.write_table("empty", fields, sizeof(Row), nullptr, 0);
    file.close();
  }
  const File file = File::open(folder_ / "a.h5");
  EXPECT_EQ(file.table_rows("t"), 2);
  EXPECT_EQ(file.table_rows("empty"), 0);
  struct Part {
    int64_t bytes;
    char file[16];
  };
  std::vector<Part> got(2);
  const std::vector<Field> some = {{"bytes", DType::i64, 0, offsetof(Part, bytes)},
                                   {"file", DType::u8, 16, offsetof(Part, file)}};
  file.read_table("t", some, sizeof(Part), got.data());
  EXPECT_EQ(got[0].bytes, 12);
  EXPECT_STREQ(got[0].file, "shard_00000.h5");
  EXPECT_EQ(std::string(got[1].file, 16), "exactly16letters");
  const std::vector<Field> absent = {{"digest", DType::u8, 16, 0}};
  const Error error = error_of([&] { file.read_table("t", absent, 16, got.data()); });
  EXPECT_NE(std::string(error.what()).find("digest"), std::string::npos);
}

TEST_F(H5, AFileBuiltInMemoryOpensBehindItsUserBlock) {
  File file = File::create_in_memory(folder_ / "m.h5", 512);
  const std::vector<float> values = counting(10);
  file.create_dataset("x", DType::f32, Shape{10}).write(values.data(), DType::f32);
  const std::vector<std::byte> image = file.close_image();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "m.h5"));
  for (size_t i = 0; i < 512; ++i) ASSERT_EQ(image[i], std::byte{0});
  std::ofstream(folder_ / "m.h5", std::ios::binary)
      .write(reinterpret_cast<const char*>(image.data()),
             static_cast<std::streamsize>(image.size()));
  std::vector<float> got(10);
  File::open(folder_ / "m.h5").open_dataset("x").read(got.data(), DType::f32);
  EXPECT_EQ(got, values);
}

TEST_F(H5, ClosingWithHandlesOpenIsAFaultOfTheProgram) {
  File file = File::create(folder_ / "a.h5");
  const Group group = file.create_group("g");
  EXPECT_EQ(error_of([&] { file.close(); }).code(), ExitCode::failure);
}

TEST_F(H5, FaultsNameTheFileAndSayWhoseTheyAre) {
  ::testing::internal::CaptureStderr();
  const Error missing = error_of([&] { File::open(folder_ / "none.h5"); });
  EXPECT_EQ(missing.code(), ExitCode::bad_data);
  EXPECT_NE(std::string(missing.what()).find("none.h5"), std::string::npos);
  EXPECT_EQ(std::string(missing.what()),
            (folder_ / "none.h5").string() +
                ": cannot open this HDF5 file: unable to open file: No such file or directory");

  std::ofstream(folder_ / "text.h5") << "this is no HDF5 file";
  EXPECT_EQ(error_of([&] { File::open(folder_ / "text.h5"); }).code(), ExitCode::bad_data);
  EXPECT_EQ(error_of([&] { File::open(folder_); }).code(), ExitCode::bad_data);

  const Error unwritable = error_of([&] { File::create(folder_ / "no" / "a.h5"); });
  EXPECT_EQ(unwritable.code(), ExitCode::failure);

  write_floats(folder_ / "a.h5", "x", counting(100'000));
  const File file = File::open(folder_ / "a.h5");
  const Error absent = error_of([&] { file.open_dataset("blocks.0"); });
  EXPECT_NE(std::string(absent.what()).find("a.h5:/blocks.0"), std::string::npos) << absent.what();

  std::filesystem::copy(folder_ / "a.h5", folder_ / "cut.h5");
  std::filesystem::resize_file(folder_ / "cut.h5", 200'000);
  EXPECT_EQ(error_of([&] { File::open(folder_ / "cut.h5"); }).code(), ExitCode::bad_data);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// A stand-in for a full disk that needs no privilege: a limit on the size of files, at every place
// of a file with many small datasets. In a process of its own, which must go on and end well: HDF5
// crashes after a write of its own that failed.
TEST_F(H5, ARefusedWriteIsAnErrorAndHarmsNothingElse) {
  const auto write_many = [&](const std::filesystem::path& path) {
    File file = File::create(path);
    for (int i = 0; i < 20; ++i) {
      Group group = file.create_group(format("g{}", i));
      group.create_dataset("x", DType::f32, Shape{150}).write(counting(150).data(), DType::f32);
    }
    file.close();
  };
  write_many(folder_ / "whole.h5");
  const auto bytes = static_cast<rlim_t>(std::filesystem::file_size(folder_ / "whole.h5"));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    for (rlim_t most = 0; most < bytes; most += 389) {
      const rlimit limit = {most, RLIM_INFINITY};
      setrlimit(RLIMIT_FSIZE, &limit);
      try {
        write_many(folder_ / "cut.h5");
        std::_Exit(1);
      } catch (const Error& error) {
        if (error.code() != ExitCode::failure) std::_Exit(2);
        if (std::string(error.what()).find("File too large") == std::string::npos) std::_Exit(3);
      }
    }
    const rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    write_many(folder_ / "after.h5");
    if (File::open(folder_ / "after.h5").names().size() != 20) std::_Exit(4);
    std::exit(42);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST_F(H5, ThreadsTakeTurns) {
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const auto path = folder_ / format("{}.h5", t);
      const std::vector<float> values = counting(100, static_cast<float>(1000 * t));
      write_floats(path, "x", values);
      for (int i = 0; i < 50; ++i) {
        File memory = File::create_in_memory("memory");
        memory.create_group("g");
        memory.close();
        std::vector<float> got(100);
        File::open(path).open_dataset("x").read(got.data(), DType::f32);
        if (got == values) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 400);
}

}  // namespace
}  // namespace voltapile::h5
