// Handles and attributes.
#include <memory>

#include "library.hpp"
#include "target.hpp"

namespace voltapile::h5 {

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) { Handle closing(std::exchange(id_, std::exchange(other.id_, -1))); }
  return *this;
}

Handle::~Handle() {
  if (id_ < 0) return;
  Turn turn;
  H5Idec_ref(id_);
}

void Object::check_written() const {
  if (target_ && !target_->fault.empty()) {
    throw Error(code_, format("{}: cannot write: {}", where_, target_->fault));
  }
}

namespace {

void write_attribute(hid_t object, const std::string& name, hid_t file_type, hid_t memory_type,
                     const void* value, ExitCode code, const std::string& where) {
  const Handle space(check(H5Screate(H5S_SCALAR), code, where, "cannot describe an attribute"));
  const Handle attribute(
      check(H5Acreate2(object, name.c_str(), file_type, space.id(), H5P_DEFAULT, H5P_DEFAULT), code,
            where, ("cannot create attribute " + name).c_str()));
  check(H5Awrite(attribute.id(), memory_type, value), code, where,
        ("cannot write attribute " + name).c_str());
}

Handle open_attribute(hid_t object, const std::string& name, ExitCode code,
                      const std::string& where) {
  Handle attribute(check(H5Aopen(object, name.c_str(), H5P_DEFAULT), code, where,
                         ("cannot open attribute " + name).c_str()));
  const Handle space(
      check(H5Aget_space(attribute.id()), code, where, "cannot read an attribute's shape"));
  if (H5Sget_simple_extent_npoints(space.id()) != 1) {
    throw Error(code, format("{}: attribute {} is not one value", where, name));
  }
  return attribute;
}

// HDF5 would clamp a value that does not fit, and turn 1.5 into 1: take the same class only.
template <class T>
T read_attribute(hid_t object, const std::string& name, H5T_class_t wanted, hid_t memory_type,
                 ExitCode code, const std::string& where) {
  const Handle attribute = open_attribute(object, name, code, where);
  const Handle type(
      check(H5Aget_type(attribute.id()), code, where, "cannot read an attribute's type"));
  if (H5Tget_class(type.id()) != wanted) {
    throw Error(code, format("{}: attribute {} is not {}", where, name,
                             wanted == H5T_INTEGER ? "an integer" : "a floating-point number"));
  }
  T value{};
  check(H5Aread(attribute.id(), memory_type, &value), code, where,
        ("cannot read attribute " + name).c_str());
  return value;
}

}  // namespace

void Object::set_attribute(const std::string& name, int64_t value) {
  Turn turn;
  write_attribute(handle_.id(), name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value, code_, where_);
}
void Object::set_attribute(const std::string& name, uint64_t value) {
  Turn turn;
  write_attribute(handle_.id(), name, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value, code_, where_);
}
void Object::set_attribute(const std::string& name, double value) {
  Turn turn;
  write_attribute(handle_.id(), name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value, code_, where_);
}
void Object::set_attribute(const std::string& name, std::string_view value) {
  Turn turn;
  const Handle type(check(H5Tcopy(H5T_C_S1), code_, where_, "cannot make a text type"));
  check(H5Tset_size(type.id(), H5T_VARIABLE), code_, where_, "cannot make a text type");
  check(H5Tset_cset(type.id(), H5T_CSET_UTF8), code_, where_, "cannot make a text type");
  const std::string text(value);
  const char* pointer = text.c_str();
  write_attribute(handle_.id(), name, type.id(), type.id(), &pointer, code_, where_);
}

bool Object::has_attribute(const std::string& name) const {
  Turn turn;
  return check(H5Aexists(handle_.id(), name.c_str()), code_, where_,
               "cannot look up an attribute") > 0;
}
int64_t Object::int_attribute(const std::string& name) const {
  Turn turn;
  return read_attribute<int64_t>(handle_.id(), name, H5T_INTEGER, H5T_NATIVE_INT64, code_, where_);
}
uint64_t Object::uint_attribute(const std::string& name) const {
  Turn turn;
  return read_attribute<uint64_t>(handle_.id(), name, H5T_INTEGER, H5T_NATIVE_UINT64, code_,
                                  where_);
}
double Object::double_attribute(const std::string& name) const {
  Turn turn;
  return read_attribute<double>(handle_.id(), name, H5T_FLOAT, H5T_NATIVE_DOUBLE, code_, where_);
}

std::string Object::text_attribute(const std::string& name) const {
  Turn turn;
  const Handle attribute = open_attribute(handle_.id(), name, code_, where_);
  const Handle type(
      check(H5Aget_type(attribute.id()), code_, where_, "cannot read an attribute's type"));
  if (H5Tget_class(type.id()) != H5T_STRING) {
    throw Error(code_, format("{}: attribute {} is not text", where_, name));
  }
  if (check(H5Tis_variable_str(type.id()), code_, where_, "cannot read an attribute's type") > 0) {
    char* read = nullptr;
    check(H5Aread(attribute.id(), type.id(), &read), code_, where_,
          ("cannot read attribute " + name).c_str());
    const std::unique_ptr<char, herr_t (*)(void*)> text(
        read, [](void* memory) { return H5free_memory(memory); });
    return text ? std::string(text.get()) : std::string();
  }
  std::string text(H5Tget_size(type.id()), '\0');
  check(H5Aread(attribute.id(), type.id(), text.data()), code_, where_,
        ("cannot read attribute " + name).c_str());
  return text.substr(0, text.find('\0'));
}

}  // namespace voltapile::h5
