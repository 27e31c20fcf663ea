// HDF5 files through thin owning handles; the only module that includes hdf5.h.
//
// Every call is checked. A fault becomes one Error with the file's name and HDF5's own first cause:
// bad_data for a file opened for reading, failure for one being written. HDF5 prints nothing.
// HDF5 may be built without thread safety, so calls take turns on one process-wide mutex; handles
// may be used from any thread. Files are written in a form that HDF5 1.8.0 (virtual datasets: 1.10)
// and later read. Element types: f32, f64, u8, i32, i64, little-endian in the file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "voltapile/base/dtype.hpp"
#include "voltapile/base/error.hpp"
#include "voltapile/base/tensor_view.hpp"

namespace voltapile::h5 {

// A block of a dataset: `count` elements of each dim from `start`.
struct Box {
  Shape start, count;
};

// One part of a virtual dataset: the elements of a 1-D dataset from `offset` on fill the box in
// row-major order.
struct VirtualPart {
  std::string file;     // relative to the folder of the file that holds the virtual dataset
  std::string dataset;  // absolute path inside `file`
  int64_t extent = 0;   // elements of the source dataset
  int64_t offset = 0;
  Box box;
};

// A column of a table. Text columns hold `text_bytes` characters, padded with zeros.
struct Field {
  std::string name;
  DType type = DType::i64;
  size_t text_bytes = 0;  // > 0: text, and `type` is not looked at
  size_t offset = 0;      // in a row
  bool optional = false;  // rows of a file without this column are read as they were
};

// Owns one HDF5 identifier; move-only. Destroying it closes it and swallows faults.
class Handle {
 public:
  Handle() = default;
  explicit Handle(int64_t id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();
  int64_t id() const { return id_; }
  int64_t release() { return std::exchange(id_, -1); }

 private:
  int64_t id_ = -1;
};

struct Target;  // where a file goes that is being written

// What a file, a group and a dataset share: attributes, and a name for messages.
class Object {
 public:
  // "runs/a/index.h5:/model"
  const std::string& where() const { return where_; }

  // A second value under the same name is an error. An integer reads as int64_t or uint64_t.
  void set_attribute(const std::string& name, int64_t value);
  void set_attribute(const std::string& name, uint64_t value);
  void set_attribute(const std::string& name, double value);
  void set_attribute(const std::string& name, std::string_view value);  // UTF-8
  bool has_attribute(const std::string& name) const;
  int64_t int_attribute(const std::string& name) const;
  uint64_t uint_attribute(const std::string& name) const;
  double double_attribute(const std::string& name) const;
  std::string text_attribute(const std::string& name) const;

 protected:
  Object(Handle handle, std::string where, ExitCode code, std::shared_ptr<Target> target)
      : target_(std::move(target)),
        handle_(std::move(handle)),
        where_(std::move(where)),
        code_(code) {}
  void check_written() const;  // Error when a write to the file was refused

  std::shared_ptr<Target> target_;  // null: reading. Outlives the handle, which may write to it
  Handle handle_;
  std::string where_;
  ExitCode code_;  // of a fault here
};

class Dataset : public Object {
 public:
  Shape shape() const;  // Error when it has more than Shape::kMaxDims dims
  // All elements, row-major, in `type` (converted when the file has another type).
  void write(const void* data, DType type);
  void read(void* data, DType type) const;
  // The elements of `box`, in row-major order.
  void read_box(const Box& box, void* data, DType type) const;
  // Where the first element lies in the file, in bytes. Contiguous datasets with elements only.
  int64_t place_bytes() const;

 private:
  friend class Group;
  using Object::Object;
};

class Group : public Object {
 public:
  Group create_group(const std::string& name);
  Group open_group(const std::string& name) const;
  bool exists(const std::string& name) const;  // a direct child
  std::vector<std::string> names() const;      // of the children, sorted

  // Contiguous, space allocated at once and not filled: every element must be written.
  Dataset create_dataset(const std::string& name, DType type, const Shape& shape);
  Dataset open_dataset(const std::string& name) const;
  // f32; what no part covers, and what a missing source would give, reads as NaN.
  Dataset create_virtual(const std::string& name, const Shape& shape,
                         std::span<const VirtualPart> parts);
  // A second name for an object of the same file: `target` is its absolute path.
  void link(const std::string& name, const std::string& target);

  // A 1-D dataset of records. Rows are `row_bytes` apart in `rows`. Reading takes the fields that
  // are asked for, by name; Error when one is missing that is not optional.
  void write_table(const std::string& name, std::span<const Field> fields, size_t row_bytes,
                   const void* rows, int64_t count);
  int64_t table_rows(const std::string& name) const;
  void read_table(const std::string& name, std::span<const Field> fields, size_t row_bytes,
                  void* rows) const;

 protected:
  using Object::Object;

 private:
  std::string child(const std::string& name) const;
  Dataset create(const std::string& name, const Handle& type, const Handle& space,
                 const Handle& creation);
};

// Whatever has at least `from_bytes` begins at a multiple of `bytes` in the file.
struct Alignment {
  size_t from_bytes = 0, bytes = 1;
};

class File : public Group {
 public:
  static File open(const std::filesystem::path& path);  // for reading
  // Empties what was there.
  static File create(const std::filesystem::path& path, const Alignment& alignment = {});
  // A file that lives in memory until close_image() hands over its bytes; `name` is for messages.
  // The first `user_block` bytes (0, or a power of two from 512) of the image are left to the
  // caller, and are zero.
  static File create_in_memory(const std::filesystem::path& name, size_t user_block = 0);

  // Closes and returns the file's bytes (create_in_memory only).
  std::vector<std::byte> close_image();
  // Of a file that was written: every byte is on the disk when this returns, and a refused write
  // is an Error at the latest here. A file that is destroyed without it may hold anything. Nothing
  // inside may be open any more.
  void close();
  // The same, but nothing has been waited for: for who fills datasets by their places afterwards.
  void close_unsynced();

 private:
  using Group::Group;
  enum class Sync { yes, no };
  void close(Sync sync);
  static File create_on(std::shared_ptr<Target> target, const std::string& where, size_t user_block,
                        const Alignment& alignment);
};

}  // namespace voltapile::h5
