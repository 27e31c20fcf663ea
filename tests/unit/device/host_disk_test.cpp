// The file of the NVMe home: what is written comes back, by io_uring and by threads, direct and
// buffered; and what happens when the disk is full, not there or failing.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "voltapile/base/error.hpp"
#include "voltapile/device/host/disk.hpp"

namespace voltapile::host {
namespace {

namespace fs = std::filesystem;

// A folder in the working directory, which lies on a disk more often than /tmp does.
class Folder {
 public:
  Folder() : path_(fs::absolute(format("disk_test_{}", getpid()))) { fs::create_directory(path_); }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A system call that fails in the calling thread, and in those it starts, where its second argument
// is `second` and its third has the bits of `third`.
struct Refusal {
  unsigned call;
  int error;
  unsigned second = 0, third = 0;
};
bool refuse(const std::vector<Refusal>& refusals) {
  std::vector<sock_filter> code;
  const auto load = [&](size_t place) {
    code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(place)));
  };
  for (const Refusal& r : refusals) {
    load(offsetof(seccomp_data, nr));
    code.push_back(
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, r.call, 0, static_cast<uint8_t>(r.third != 0 ? 5 : 1)));
    if (r.third != 0) {
      load(offsetof(seccomp_data, args[1]));
      code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, r.second, 0, 3));
      load(offsetof(seccomp_data, args[2]));
      code.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, r.third, 0, 1));
    }
    code.push_back(
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<uint32_t>(r.error) & 0xffffu)));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<unsigned short>(code.size()), code.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
const Refusal kNoUring = {SYS_io_uring_setup, EPERM};
const Refusal kNoDirect = {SYS_fcntl, EINVAL, F_SETFL, O_DIRECT};

// Runs `body` in a thread where system calls fail; false where that cannot be arranged.
bool with_refused(const std::vector<Refusal>& refusals, const std::function<void()>& body) {
  bool arranged = false;
  std::thread([&] {
    arranged = refusals.empty() || refuse(refusals);
    if (arranged) body();
  }).join();
  return arranged;
}

// In a process of its own, which may mount and limit as it likes.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
bool mount_disk(const fs::path& place, const std::string& options, unsigned long flags = 0) {
  return unshare(CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER)) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", place.c_str(), "tmpfs", flags, options.c_str()) == 0;
}

std::string fault_of(ExitCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.code() == code ? e.what()
                            : format("exit code {}: {}", static_cast<int>(e.code()), e.what());
  }
  return "no fault";
}
bool has(const std::string& text, const std::vector<std::string>& parts) {
  const bool all = std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return text.find(part) != std::string::npos;
  });
  if (!all) std::fprintf(stderr, "%s\n", text.c_str());
  return all;
}

// Any offset, size and address, most of them whole pages, against a copy in memory.
void expect_what_was_written(DiskFile& file, size_t bytes) {
  std::mt19937_64 random(1);
  std::vector<std::byte> mirror(bytes), memory(bytes + 8192);
  const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
  for (int turn = 0; turn < 60; ++turn) {
    const size_t unit = turn % 3 == 0 ? 1 : 4096;
    const size_t offset = turn == 0 ? 0 : draw(bytes) / unit * unit;
    const size_t most = bytes - offset;
    size_t count = turn % 4 == 1 ? std::min<size_t>(most, draw(9000)) : draw(most + 1);
    if (turn < 2) count = most;
    count = count / unit * unit;
    // 0: as compute_memory gives it; 256: as an arena does; 1.
    const size_t skew = turn % 2 == 0 ? 0 : turn % 5 == 0 ? 1 : 256;
    auto* const at =
        memory.data() + (4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096) % 4096 + skew;
    if (turn != 0 && turn % 2 == 0) {
      for (size_t i = 0; i < count; ++i) at[i] = static_cast<std::byte>(i * 7 + i / 4096 + turn);
      file.write(offset, {at, count});
      std::copy_n(at, count, mirror.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    std::fill_n(at, count, std::byte{0x55});
    file.read(offset, {at, count});
    ASSERT_EQ(std::memcmp(at, mirror.data() + offset, count), 0)
        << file.describe() << ", turn " << turn << ": " << count << " bytes at " << offset;
  }
  std::vector<std::byte> all(bytes);
  file.read(0, all);
  EXPECT_TRUE(all == mirror) << file.describe();
}

TEST(DiskFile, gives_back_what_was_written_anywhere_by_every_way_there_is) {
  const Folder folder;
  constexpr size_t kBytes = 2 * DiskFile::kQueueDepth * DiskFile::kPieceBytes + 12345;
  for (const std::vector<Refusal>& refusals :
       std::vector<std::vector<Refusal>>{{}, {kNoUring}, {kNoDirect}, {kNoUring, kNoDirect}})
    if (!with_refused(refusals, [&] {
          DiskFile file(folder.path(), "rank_0", kBytes);
          expect_what_was_written(file, kBytes);
        }))
      GTEST_SKIP() << "system calls cannot be refused here";
}

TEST(DiskFile, says_what_it_does_instead_of_io_uring_and_direct) {
  const Folder folder;
  const auto description = [&](const std::vector<Refusal>& refusals) {
    std::string text;
    with_refused(refusals, [&] { text = DiskFile(folder.path(), "a", 1).describe(); });
    return text;
  };
  const std::string usual = description({}), threads = description({kNoUring}),
                    buffered = description({kNoDirect});
  if (threads.empty()) GTEST_SKIP() << "system calls cannot be refused here";
  EXPECT_TRUE(has(threads, {"4 threads (io_uring: "})) << threads;
  if (usual.find("io_uring,") == 0) {
    EXPECT_TRUE(has(threads, {"Operation not permitted"})) << threads;
  }
  EXPECT_TRUE(has(buffered, {", buffered (the file system refuses direct I/O)"})) << buffered;
  EXPECT_EQ(usual.find("(the file"), std::string::npos) << "tests should run on a disk: " << usual;
}

TEST(DiskFile, leaves_nothing_behind) {
  const Folder folder;
  const DiskFile file(folder.path() / "new" / "folder", "rank_0", 100000);
  EXPECT_TRUE(fs::is_empty(folder.path() / "new" / "folder"));
}

// Neighbours share blocks of the disk.
TEST(DiskFile, keeps_apart_what_threads_write_side_by_side) {
  const Folder folder;
  constexpr size_t kOne = 1000, kEach = 300, kThreads = 4;
  DiskFile file(folder.path(), "rank_0", kThreads * kEach * kOne);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::vector<std::byte> ours(kOne, static_cast<std::byte>(t + 1)), back(kOne);
      for (size_t i = 0; i < kEach; ++i) {
        const size_t offset = (i * kThreads + t) * kOne;
        file.write(offset, ours);
        file.read(offset, back);
        EXPECT_TRUE(back == ours) << offset;
      }
    });
  for (auto& thread : threads) thread.join();
  std::vector<std::byte> all(kThreads * kEach * kOne);
  file.read(0, all);
  for (size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(all[i], static_cast<std::byte>(i / kOne % kThreads + 1)) << i;
}

TEST(DiskFile, names_the_folder_and_the_key_where_no_file_can_be_made) {
  const Folder folder;
  std::ofstream(folder.path() / "file") << "a file";
  EXPECT_TRUE(
      has(fault_of(ExitCode::bad_input, [&] { DiskFile(folder.path() / "file", "rank_0", 10); }),
          {"memory.nvme_dir", (folder.path() / "file").string(), "name a folder"}));
  if (!in_child([&] { return mount_disk(folder.path(), "size=1m", MS_RDONLY); }))
    GTEST_SKIP() << "no file system may be mounted here";
  EXPECT_TRUE(in_child([&] {
    return mount_disk(folder.path(), "size=1m", MS_RDONLY) &&
           has(fault_of(ExitCode::bad_input, [&] { DiskFile(folder.path(), "rank_0", 10); }),
               {"memory.nvme_dir", folder.path().string(), "Read-only file system"});
  }));
}

TEST(DiskFile, tells_bytes_needed_and_free_where_the_disk_is_too_small) {
  const Folder folder;
  if (!in_child([&] { return mount_disk(folder.path(), "size=8m"); }))
    GTEST_SKIP() << "no file system may be mounted here";
  EXPECT_TRUE(in_child([&] {
    if (!mount_disk(folder.path(), "size=8m")) return false;
    const DiskFile first(folder.path(), "rank_0", 5 << 20);
    return has(fault_of(ExitCode::failure, [&] { DiskFile(folder.path(), "rank_1", 4 << 20); }),
               {"rank_1", "needs 4.19 MB", "of which 3.15 MB are free", folder.path().string(),
                "memory.nvme_dir", "No space left on device"});
  }));
}

// The descriptor of the scratch file, which has no name any more.
int descriptor_of(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code fault;
    if (fs::read_symlink(entry.path(), fault).string().find(folder.string()) == 0)
      return std::stoi(entry.path().filename());
  }
  return -1;
}

TEST(DiskFile, names_file_offset_and_bytes_of_what_came_short) {
  const Folder folder;
  DiskFile file(folder.path(), "rank_0", 40 << 20);
  const int descriptor = descriptor_of(folder.path());
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(ftruncate(descriptor, 30 << 20), 0);
  std::vector<std::byte> memory(40 << 20);
  const std::string fault = fault_of(ExitCode::failure, [&] {
    file.read(4096, {memory.data(), (40u << 20) - 8192});
  });
  EXPECT_TRUE(has(fault, {"reading ", " at offset ", folder.path().string() + "/rank_0",
                          "only 0 bytes were transferred"}));
  // What is there still is.
  file.read(0, {memory.data(), 30 << 20});
  // Whoever has less than a block to read.
  EXPECT_TRUE(has(fault_of(ExitCode::failure,
                           [&] {
                             file.read((35u << 20) + 1, {memory.data(), 5});
                           }),
                  {"reading ", "only 0 bytes were transferred"}));
}

TEST(DiskFile, gives_the_systems_reason_when_a_transfer_fails) {
  const Folder folder;
  for (const bool threads : {false, true})
    EXPECT_TRUE(in_child([&] {
      if (threads && !refuse({kNoUring})) return true;
      DiskFile file(folder.path(), "rank_0", 40 << 20);
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit = {20 << 20, 20 << 20};
      setrlimit(RLIMIT_FSIZE, &limit);
      std::vector<std::byte> memory(40 << 20);
      bool good = has(fault_of(ExitCode::failure, [&] { file.write(0, memory); }),
                      {"writing ", " at offset ", folder.path().string(), "File too large"});
      file.write(0, {memory.data(), 20 << 20});  // goes on with what is right
      return good;
    })) << threads;
  for (const unsigned call : {SYS_pread64, SYS_pwrite64}) {
    std::string fault;
    const bool arranged = with_refused({kNoUring}, [&] {
      DiskFile file(folder.path(), "rank_0", 8 << 20);
      std::vector<std::byte> memory(8 << 20);
      // In this thread alone, so blocks are met that it transfers itself.
      if (!refuse({{call, EIO}})) return;
      fault = fault_of(ExitCode::failure, [&] { file.write(1, {memory.data(), 9000}); });
    });
    if (arranged) { EXPECT_TRUE(has(fault, {"4096 bytes at offset 0", "Input/output error"})); }
  }
}

TEST(DiskFile, refuses_what_lies_beyond_its_end) {
  const Folder folder;
  DiskFile file(folder.path(), "rank_0", 1000);
  std::vector<std::byte> memory(1001);
  file.write(0, {memory.data(), 1000});
  EXPECT_THROW(file.write(0, memory), Error);
  EXPECT_THROW(file.read(1000, {memory.data(), 1}), Error);
  EXPECT_THROW(file.read(SIZE_MAX, {memory.data(), 2}), Error);
}

}  // namespace
}  // namespace voltapile::host
