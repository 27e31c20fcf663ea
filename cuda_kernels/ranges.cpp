#include "ranges.hpp"

#include <cstdio>
#include <string>
#include <string_view>

namespace voltapile::cuda {
namespace {

// Category 0 is no category.
uint32_t category_of(Lane lane) { return 1 + static_cast<uint32_t>(lane); }

}  // namespace

Ranges::Ranges() : domain_(nvtxDomainCreateA("voltapile")) {
  for (int lane = 0; lane < kLaneCount; ++lane)
    nvtxDomainNameCategoryA(domain_, category_of(static_cast<Lane>(lane)),
                            std::string(name_of(static_cast<Lane>(lane))).c_str());
}

Ranges::~Ranges() { nvtxDomainDestroy(domain_); }

void Ranges::open(const Instruction& instruction) {
  const std::string_view name = name_of(instruction.op);
  const int width = static_cast<int>(name.size());
  char text[64];
  if (instruction.micro >= 0)
    std::snprintf(text, sizeof(text), "%.*s %d.%d", width, name.data(), instruction.chunk,
                  instruction.micro);
  else if (instruction.chunk >= 0)
    std::snprintf(text, sizeof(text), "%.*s %d", width, name.data(), instruction.chunk);
  else std::snprintf(text, sizeof(text), "%.*s", width, name.data());
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.category = category_of(instruction.lane);
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text;
  nvtxDomainRangePushEx(domain_, &attributes);
}

void Ranges::close() { nvtxDomainRangePop(domain_); }

}  // namespace voltapile::cuda
