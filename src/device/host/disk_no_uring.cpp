#include "disk_queue.hpp"

namespace voltapile::host {

std::unique_ptr<DiskQueue> make_uring_queue(int, std::string& why_not) {
  why_not = "built without liburing";
  return nullptr;
}

}  // namespace voltapile::host
