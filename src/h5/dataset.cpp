// Datasets: plain, virtual, and tables of records.
#include <array>
#include <limits>

#include "library.hpp"

namespace voltapile::h5 {
namespace {

Handle creation_properties(ExitCode code, const std::string& where) {
  return Handle(
      check(H5Pcreate(H5P_DATASET_CREATE), code, where, "cannot make creation properties"));
}

enum class Place { file, memory };

Handle text_type(size_t bytes, ExitCode code, const std::string& where) {
  Handle type(check(H5Tcopy(H5T_C_S1), code, where, "cannot make a text type"));
  check(H5Tset_size(type.id(), bytes), code, where, "cannot make a text type");
  check(H5Tset_strpad(type.id(), H5T_STR_NULLPAD), code, where, "cannot make a text type");
  return type;
}

Handle row_type(std::span<const Field> fields, size_t row_bytes, Place place, ExitCode code,
                const std::string& where) {
  Handle type(check(H5Tcreate(H5T_COMPOUND, row_bytes), code, where, "cannot make a row type"));
  for (const Field& field : fields) {
    const Handle text = field.text_bytes > 0 ? text_type(field.text_bytes, code, where) : Handle();
    const hid_t scalar = field.text_bytes > 0     ? text.id()
                         : place == Place::memory ? memory_type(field.type)
                                                  : file_type(field.type);
    check(H5Tinsert(type.id(), field.name.c_str(), field.offset, scalar), code, where,
          ("cannot add column " + field.name).c_str());
  }
  if (place == Place::file) check(H5Tpack(type.id()), code, where, "cannot pack a row type");
  return type;
}

}  // namespace

Shape Dataset::shape() const {
  Turn turn;
  const Handle space(check(H5Dget_space(handle_.id()), code_, where_, "cannot read the shape"));
  const int dims =
      check(H5Sget_simple_extent_ndims(space.id()), code_, where_, "cannot read the shape");
  if (dims > Shape::kMaxDims) {
    throw Error(code_, format("{}: {} dims; at most {} are supported", where_, dims,
                              static_cast<int>(Shape::kMaxDims)));
  }
  std::array<hsize_t, Shape::kMaxDims> extents{};
  check(H5Sget_simple_extent_dims(space.id(), extents.data(), nullptr), code_, where_,
        "cannot read the shape");
  Shape shape;
  for (int dim = 0; dim < dims; ++dim) {
    shape.append(static_cast<int64_t>(extents[static_cast<size_t>(dim)]));
  }
  return shape;
}

void Dataset::write(const void* data, DType type) {
  Turn turn;
  check(H5Dwrite(handle_.id(), memory_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data), code_,
        where_, "cannot write");
  check_written();
}

void Dataset::read(void* data, DType type) const {
  Turn turn;
  check(H5Dread(handle_.id(), memory_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data), code_,
        where_, "cannot read");
}

void Dataset::read_box(const Box& box, void* data, DType type) const {
  Turn turn;
  const Handle space(check(H5Dget_space(handle_.id()), code_, where_, "cannot read the shape"));
  select_box(space.id(), box, code_, where_);
  if (check(H5Sselect_valid(space.id()), code_, where_, "cannot select a block") == 0) {
    throw Error(code_, format("{}: it does not hold the block of {} from {}", where_,
                              box.count.text(), box.start.text()));
  }
  const Handle memory = make_space(Shape{box.count.elements()}, code_, where_);
  check(H5Dread(handle_.id(), memory_type(type), memory.id(), space.id(), H5P_DEFAULT, data), code_,
        where_, "cannot read");
}

int64_t Dataset::place_bytes() const {
  Turn turn;
  const haddr_t place = H5Dget_offset(handle_.id());
  if (place == HADDR_UNDEF) throw Error(code_, where_ + ": it has no one place in its file");
  return static_cast<int64_t>(place);
}

Dataset Group::create(const std::string& name, const Handle& type, const Handle& space,
                      const Handle& creation) {
  Handle dataset(check(H5Dcreate2(handle_.id(), name.c_str(), type.id(), space.id(), H5P_DEFAULT,
                                  creation.id(), H5P_DEFAULT),
                       code_, child(name), "cannot create this dataset"));
  return Dataset(std::move(dataset), child(name), code_, target_);
}

Dataset Group::create_dataset(const std::string& name, DType type, const Shape& shape) {
  Turn turn;
  const std::string where = child(name);
  const Handle stored(check(H5Tcopy(file_type(type)), code_, where, "cannot make a type"));
  const Handle space = make_space(shape, code_, where);
  const Handle creation = creation_properties(code_, where);
  check(H5Pset_layout(creation.id(), H5D_CONTIGUOUS), code_, where, "cannot choose a layout");
  check(H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY), code_, where,
        "cannot allocate at once");
  check(H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER), code_, where,
        "cannot leave space unfilled");
  return create(name, stored, space, creation);
}

Dataset Group::open_dataset(const std::string& name) const {
  Turn turn;
  Handle dataset(check(H5Dopen2(handle_.id(), name.c_str(), H5P_DEFAULT), code_, child(name),
                       "cannot open this dataset"));
  return Dataset(std::move(dataset), child(name), code_, target_);
}

Dataset Group::create_virtual(const std::string& name, const Shape& shape,
                              std::span<const VirtualPart> parts) {
  Turn turn;
  const std::string where = child(name);
  const Handle stored(check(H5Tcopy(H5T_IEEE_F32LE), code_, where, "cannot make a type"));
  const Handle space = make_space(shape, code_, where);
  const Handle creation = creation_properties(code_, where);
  const float fill = std::numeric_limits<float>::quiet_NaN();
  check(H5Pset_fill_value(creation.id(), H5T_NATIVE_FLOAT, &fill), code_, where,
        "cannot set the fill value");
  for (const VirtualPart& part : parts) {
    const int64_t elements = part.box.count.elements();
    VP_CHECK(part.offset + elements <= part.extent, "{}: elements {}:{} of {} in {}", where,
             part.offset, part.offset + elements, part.extent, part.file);
    select_box(space.id(), part.box, code_, where);
    const Handle source = make_space(Shape{part.extent}, code_, where);
    select_box(source.id(), {Shape{part.offset}, Shape{elements}}, code_, where);
    check(H5Pset_virtual(creation.id(), space.id(), part.file.c_str(), part.dataset.c_str(),
                         source.id()),
          code_, where, "cannot map a part");
  }
  check(H5Sselect_all(space.id()), code_, where, "cannot select everything");
  return create(name, stored, space, creation);
}

void Group::write_table(const std::string& name, std::span<const Field> fields, size_t row_bytes,
                        const void* rows, int64_t count) {
  Turn turn;
  const std::string where = child(name);
  const Handle stored = row_type(fields, row_bytes, Place::file, code_, where);
  const Handle memory = row_type(fields, row_bytes, Place::memory, code_, where);
  const Handle space = make_space(Shape{count}, code_, where);
  const Handle creation = creation_properties(code_, where);
  const Dataset table = create(name, stored, space, creation);
  if (count == 0) return;
  check(H5Dwrite(table.handle_.id(), memory.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, rows), code_,
        where, "cannot write");
}

int64_t Group::table_rows(const std::string& name) const {
  const Dataset table = open_dataset(name);
  const Shape shape = table.shape();
  if (shape.dims() != 1) throw Error(code_, table.where() + ": this is not a table");
  return shape[0];
}

void Group::read_table(const std::string& name, std::span<const Field> fields, size_t row_bytes,
                       void* rows) const {
  Turn turn;
  const Dataset table = open_dataset(name);
  const std::string& where = table.where();
  const Handle stored(check(H5Dget_type(table.handle_.id()), code_, where, "cannot read the type"));
  // HDF5 leaves a field that the file lacks untouched, without a word.
  for (const Field& field : fields) {
    if (field.optional) continue;
    if (H5Tget_class(stored.id()) != H5T_COMPOUND ||
        H5Tget_member_index(stored.id(), field.name.c_str()) < 0) {
      throw Error(code_, format("{}: column {} is missing", where, field.name));
    }
  }
  const Handle memory = row_type(fields, row_bytes, Place::memory, code_, where);
  if (table_rows(name) == 0) return;
  check(H5Dread(table.handle_.id(), memory.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, rows), code_, where,
        "cannot read");
}

}  // namespace voltapile::h5
