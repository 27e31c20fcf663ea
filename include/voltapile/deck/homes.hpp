// Where what a rank holds lives between uses. A deck names homes; passes over the programs and the
// plan of buffers do the rest.
#pragma once

namespace voltapile {

enum class Home { device, host, nvme };
// How activations wait for backward: as they are on the device, there in 8 bits, or on the host.
enum class ActivationStore { working, int8, host };

struct Homes {
  Home optimizer = Home::device;  // master weights and moments, and who updates them
  Home weights = Home::device;    // working weights; elsewhere only where the optimizer is too
  ActivationStore activations = ActivationStore::working;
  bool operator==(const Homes&) const = default;
};

}  // namespace voltapile
