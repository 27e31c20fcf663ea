// Files, and the tree inside them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "library.hpp"
#include "target.hpp"

namespace voltapile::h5 {
namespace {

Handle access_properties(const std::string& where, ExitCode code) {
  Handle list(check(H5Pcreate(H5P_FILE_ACCESS), code, where, "cannot make access properties"));
  // Unlike the oldest file format, 1.8's has checksums of its metadata: plain h5py sees damage,
  // too.
  check(H5Pset_libver_bounds(list.id(), H5F_LIBVER_V18, H5F_LIBVER_V110), code, where,
        "cannot choose the file format");
#if H5_VERSION_GE(1, 12, 1) || (H5_VERS_MINOR == 10 && H5_VERS_RELEASE >= 7)
  // Cluster file systems mounted without locks are common; the run folder has a lock of its own.
  check(H5Pset_file_locking(list.id(), true, true), code, where, "cannot choose file locking");
#endif
  return list;
}

}  // namespace

File File::open(const std::filesystem::path& path) {
  Turn turn;
  const std::string where = path.string();
  const auto code = ExitCode::bad_data;
  const Handle access = access_properties(where, code);
  Handle file(check(H5Fopen(where.c_str(), H5F_ACC_RDONLY, access.id()), code, where,
                    "cannot open this HDF5 file"));
  return File(std::move(file), where, code, nullptr);
}

File File::create_on(std::shared_ptr<Target> target, const std::string& where, size_t user_block,
                     const Alignment& alignment) {
  const auto code = ExitCode::failure;
  const Handle access = access_properties(where, code);
  check(H5Pset_alignment(access.id(), alignment.from_bytes, alignment.bytes), code, where,
        "cannot align datasets");
  use_target(access.id(), *target, code, where);
  const Handle creation(
      check(H5Pcreate(H5P_FILE_CREATE), code, where, "cannot make creation properties"));
  check(H5Pset_userblock(creation.id(), user_block), code, where, "cannot keep a user block");
  Handle handle(check(H5Fcreate(where.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()), code,
                      where, "cannot create this HDF5 file"));
  return File(std::move(handle), where, code, std::move(target));
}

File File::create(const std::filesystem::path& path, const Alignment& alignment) {
  Turn turn;
  auto target = std::make_shared<Target>();
  target->fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (target->fd < 0) {
    throw Error(ExitCode::failure,
                format("{}: cannot create this file: {}", path.string(), std::strerror(errno)));
  }
  return create_on(std::move(target), path.string(), 0, alignment);
}

File File::create_in_memory(const std::filesystem::path& name, size_t user_block) {
  Turn turn;
  return create_on(std::make_shared<Target>(), name.string(), user_block, {});
}

std::vector<std::byte> File::close_image() {
  VP_CHECK(target_ && target_->fd < 0, "{}: this file is not in memory", where_);
  close();
  return std::move(target_->memory);
}

void File::close() { close(Sync::yes); }
void File::close_unsynced() { close(Sync::no); }

void File::close(Sync sync) {
  Turn turn;
  // With anything open inside, HDF5 would put the closing off and say nothing. (It can be told to
  // close all the same, but then no virtual dataset may use that file meanwhile: it reads as NaN.)
  const ssize_t open = H5Fget_obj_count(handle_.id(), H5F_OBJ_ALL | H5F_OBJ_LOCAL);
  VP_CHECK(open == 1, "{}: closed with {} handles open", where_, open - 1);
  check(H5Fclose(handle_.release()), code_, where_, "cannot close");
  if (!target_) return;
  if (target_->fd >= 0) {
    if (sync == Sync::yes && target_->fault.empty() && ::fsync(target_->fd) != 0)
      target_->fault = std::strerror(errno);
    // Some file systems report a lost write only here.
    if (::close(std::exchange(target_->fd, -1)) != 0 && target_->fault.empty()) {
      target_->fault = std::strerror(errno);
    }
  }
  check_written();
}

std::string Group::child(const std::string& name) const {
  const bool inside = where_.find(":/") != std::string::npos;
  return where_ + (inside ? "/" : ":/") + name;
}

Group Group::create_group(const std::string& name) {
  Turn turn;
  Handle group(check(H5Gcreate2(handle_.id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                     code_, child(name), "cannot create this group"));
  return Group(std::move(group), child(name), code_, target_);
}

Group Group::open_group(const std::string& name) const {
  Turn turn;
  Handle group(check(H5Gopen2(handle_.id(), name.c_str(), H5P_DEFAULT), code_, child(name),
                     "cannot open this group"));
  return Group(std::move(group), child(name), code_, target_);
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
