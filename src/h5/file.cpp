// Files, and the tree inside them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include "library.hpp"

namespace voltapile::h5 {
namespace {

Handle access_properties(const std::string& where, ExitCode code) {
  Handle list(check(H5Pcreate(H5P_FILE_ACCESS), code, where, "cannot make access properties"));
  // 1.8's file format checksums its metadata and holds attributes above 64 KiB (a long deck).
  check(H5Pset_libver_bounds(list.id(), H5F_LIBVER_V18, H5F_LIBVER_V110), code, where,
        "cannot choose the file format");
#if H5_VERSION_GE(1, 12, 1) || (H5_VERS_MINOR == 10 && H5_VERS_RELEASE >= 7)
  // Cluster file systems mounted without locks are common; the run folder has a lock of its own.
  check(H5Pset_file_locking(list.id(), true, true), code, where, "cannot choose file locking");
#endif
  // A file closes although something inside it is still open: handles may outlive their file.
  check(H5Pset_fclose_degree(list.id(), H5F_CLOSE_STRONG), code, where,
        "cannot choose how to close");
  return list;
}

[[noreturn]] void throw_errno(const std::string& where, const char* what) {
  throw Error(ExitCode::failure, format("{}: {}: {}", where, what, std::strerror(errno)));
}

}  // namespace

File File::open(const std::filesystem::path& path) {
  Turn turn;
  const std::string where = path.string();
  const auto code = ExitCode::bad_data;
  const Handle access = access_properties(where, code);
  Handle file(check(H5Fopen(where.c_str(), H5F_ACC_RDONLY, access.id()), code, where,
                    "cannot open this HDF5 file"));
  return File(std::move(file), where, code);
}

File File::create(const std::filesystem::path& path) {
  Turn turn;
  const std::string where = path.string();
  const auto code = ExitCode::failure;
  const Handle access = access_properties(where, code);
  Handle file(check(H5Fcreate(where.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()), code, where,
                    "cannot create this HDF5 file"));
  return File(std::move(file), where, code);
}

// An anonymous file of the kernel. HDF5's own in-memory driver will not do: the superblock that
// H5Fget_file_image of 1.10.8 returns has a wrong checksum for every file format but the oldest.
File File::create_in_memory(const std::filesystem::path& name, size_t user_block) {
  Turn turn;
  const std::string where = name.string();
  const auto code = ExitCode::failure;
  const Handle access = access_properties(where, code);
  const Handle creation(
      check(H5Pcreate(H5P_FILE_CREATE), code, where, "cannot make creation properties"));
  check(H5Pset_userblock(creation.id(), user_block), code, where, "cannot keep a user block");

  File file(Handle(), where, code);
  file.memory_fd_ = memfd_create("voltapile", MFD_CLOEXEC);
  if (file.memory_fd_ < 0) throw_errno(where, "cannot create a file in memory");
  const std::string path = format("/proc/self/fd/{}", file.memory_fd_);
  file.handle_ = Handle(check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()),
                              code, where, "cannot create an HDF5 file in memory"));
  return file;
}

File::~File() {
  if (memory_fd_ >= 0) ::close(memory_fd_);
}

std::vector<std::byte> File::close_image() {
  VP_CHECK(memory_fd_ >= 0, "{}: this file is not in memory", where_);
  close();
  const off_t bytes = lseek(memory_fd_, 0, SEEK_END);
  if (bytes < 0) throw_errno(where_, "cannot size a file in memory");
  std::vector<std::byte> image(static_cast<size_t>(bytes));
  for (size_t done = 0; done < image.size();) {
    const ssize_t got =
        pread(memory_fd_, image.data() + done, image.size() - done, static_cast<off_t>(done));
    if (got <= 0) throw_errno(where_, "cannot read a file in memory");
    done += static_cast<size_t>(got);
  }
  return image;
}

void File::close() {
  Turn turn;
  check(H5Fclose(handle_.release()), code_, where_, "cannot close");
}

std::string Group::child(const std::string& name) const {
  const bool inside = where_.find(":/") != std::string::npos;
  return where_ + (inside ? "/" : ":/") + name;
}

Group Group::create_group(const std::string& name) {
  Turn turn;
  Handle group(check(H5Gcreate2(handle_.id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                     code_, child(name), "cannot create this group"));
  return Group(std::move(group), child(name), code_);
}

Group Group::open_group(const std::string& name) const {
  Turn turn;
  Handle group(check(H5Gopen2(handle_.id(), name.c_str(), H5P_DEFAULT), code_, child(name),
                     "cannot open this group"));
  return Group(std::move(group), child(name), code_);
}

bool Group::exists(const std::string& name) const {
  Turn turn;
  return check(H5Lexists(handle_.id(), name.c_str(), H5P_DEFAULT), code_, child(name),
               "cannot look this up") > 0;
}

std::vector<std::string> Group::names() const {
  Turn turn;
  std::vector<std::string> found;
  const auto visit = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(name);
    return 0;
  };
  check(H5Literate(handle_.id(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, visit, &found), code_,
        where_, "cannot list this group");
  std::sort(found.begin(), found.end());
  return found;
}

void Group::link(const std::string& name, const std::string& target) {
  Turn turn;
  check(H5Lcreate_hard(handle_.id(), target.c_str(), handle_.id(), name.c_str(), H5P_DEFAULT,
                       H5P_DEFAULT),
        code_, child(name), ("cannot link this to " + target).c_str());
}

}  // namespace voltapile::h5
