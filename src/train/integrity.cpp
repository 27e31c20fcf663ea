#include "integrity.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "voltapile/base/host.hpp"

#include "bit_digest.hpp"

namespace voltapile {

namespace {

constexpr size_t kComparedBytes = size_t{16} << 20;

template <class T>
void add_rounded(BitDigest& digest, const float* values, size_t count) {
  std::array<T, 1024> part;
  for (size_t begin = 0; begin < count; begin += part.size()) {
    const size_t length = std::min(part.size(), count - begin);
    std::transform(values + begin, values + begin + length, part.begin(),
                   [](float value) { return static_cast<T>(value); });
    digest.add(reinterpret_cast<const std::byte*>(part.data()), length * sizeof(T));
  }
}

// A line each: place, faults, copies.
std::string text_of(const RankCopies& rank) {
  std::string text = rank.place + "\n";
  for (const std::string& fault : rank.own_faults) text += "fault " + fault + "\n";
  for (const Copy& copy : rank.copies)
    text += format("copy {} {} {}\n", copy.digest, copy.is_owner ? 1 : 0, copy.what);
  return text;
}

RankCopies rank_copies(const std::string& text) {
  RankCopies rank;
  std::istringstream lines(text);
  std::getline(lines, rank.place);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "fault") {
      std::getline(words >> std::ws, rank.own_faults.emplace_back());
      continue;
    }
    Copy& copy = rank.copies.emplace_back();
    words >> copy.digest >> copy.is_owner;
    std::getline(words >> std::ws, copy.what);
  }
  return rank;
}

using Holders = std::vector<std::pair<const RankCopies*, const Copy*>>;

std::string names(const Holders& holders, uint64_t digest, bool equal) {
  std::vector<std::string> places;
  for (const auto& [rank, copy] : holders)
    if ((copy->digest == digest) == equal) places.push_back(rank->place);
  return join(places, ", ");
}

// Empty where all copies are the same.
std::string judge(const std::string& what, const Holders& holders) {
  std::map<uint64_t, size_t> votes;
  for (const auto& [rank, copy] : holders) ++votes[copy->digest];
  if (votes.size() == 1) return {};
  const auto owner = std::find_if(holders.begin(), holders.end(),
                                  [](const auto& holder) { return holder.second->is_owner; });
  if (owner != holders.end()) {
    const uint64_t right = owner->second->digest;
    return format("{}: {} differ from their owner's, {}", what, names(holders, right, false),
                  owner->first->place);
  }
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (2 * most->second > holders.size())
    return format("{}: {} differ from the other {} copies", what,
                  names(holders, most->first, false), most->second);
  return format("{}: {} differ from {}, and nothing says which of them are right", what,
                names(holders, most->first, false), names(holders, most->first, true));
}

}  // namespace

std::vector<std::string> find_corruption(const std::vector<RankCopies>& ranks) {
  std::vector<std::string> faults;
  std::map<std::string, Holders> things;
  for (const RankCopies& rank : ranks) {
    for (const std::string& fault : rank.own_faults)
      faults.push_back(format("{}: {}", rank.place, fault));
    for (const Copy& copy : rank.copies) things[copy.what].emplace_back(&rank, &copy);
  }
  for (const auto& [what, holders] : things)
    if (std::string fault = judge(what, holders); !fault.empty())
      faults.push_back(std::move(fault));
  return faults;
}

Integrity::Integrity(RankContext& context, Communicator& control)
    : context_(context),
      control_(control),
      staging_(context.device().allocate_host(kComparedBytes, "state to be compared")) {}

uint64_t Integrity::digest_of(const void* data, size_t bytes) {
  Device& device = context_.device();
  Stream& stream = device.stream(Lane::d2h);
  BitDigest digest;
  for (size_t begin = 0; begin < bytes; begin += kComparedBytes) {
    const size_t length = std::min(kComparedBytes, bytes - begin);
    device.copy(staging_.data(), static_cast<const std::byte*>(data) + begin, length, stream);
    device.wait_on_host(device.record(stream));
    digest.add(staging_.data(), length);
  }
  return digest.value();
}

// Every data rank has all weights; the owner of a part has its master copy too.
void Integrity::add_weights(int chunk, RankCopies& mine) {
  const Plan& plan = context_.plan();
  const Coord here = context_.coord();
  const TensorView weights = context_.weights(chunk);
  const int parts = plan.deck.optimizer.zero == 1 ? plan.mesh.dp : 1;
  for (int part = 0; part < parts; ++part) {
    const Range range = shard(plan.chunks[static_cast<size_t>(chunk)].parameters,
                              plan.deck.optimizer.zero, plan.mesh.dp, part);
    const TensorView piece = weights.slice_flat(range.begin, range.end);
    Copy copy{
        .what = format("weights of chunk {}, part {} (pp{} tp{})", chunk, part, here.pp, here.tp),
        .digest = digest_of(piece.data, piece.bytes())};
    if (parts == 1 || part == here.dp) {
      const TensorView master = context_.state(chunk, StatePart::master);
      Device& device = context_.device();
      Stream& stream = device.stream(Lane::d2h);
      BitDigest rounded;
      for (size_t begin = 0; begin < master.bytes(); begin += kComparedBytes) {
        const size_t length = std::min(kComparedBytes, master.bytes() - begin);
        device.copy(staging_.data(), static_cast<const std::byte*>(master.data) + begin, length,
                    stream);
        device.wait_on_host(device.record(stream));
        const auto* values = reinterpret_cast<const float*>(staging_.data());
        const size_t count = length / sizeof(float);
        if (weights.dtype == DType::f16) add_rounded<Half>(rounded, values, count);
        else if (weights.dtype == DType::bf16) add_rounded<BFloat16>(rounded, values, count);
        else rounded.add(staging_.data(), length);
      }
      // With zero = 0 each has an original of its own, and one may be as wrong as its copy.
      copy.is_owner = parts > 1 && rounded.value() == copy.digest;
      if (rounded.value() != copy.digest)
        mine.own_faults.push_back(
            format("weights of chunk {} are not its master weights, rounded", chunk));
    }
    mine.copies.push_back(std::move(copy));
  }
}

void Integrity::add_state(int chunk, RankCopies& mine) {
  if (context_.plan().deck.optimizer.zero == 1) return;  // nobody has it twice
  const Coord here = context_.coord();
  const auto add = [&](const char* name, const TensorView& t) {
    mine.copies.push_back(
        {.what = format("{} of chunk {} (pp{} tp{})", name, chunk, here.pp, here.tp),
         .digest = digest_of(t.data, t.bytes())});
  };
  const std::pair<const char*, StatePart> parts[] = {
      {"master weights", StatePart::master},
      {"first moments", StatePart::m},
      {"second moments", StatePart::v},
      {"codes of first moments", StatePart::m_codes},
      {"scales of first moments", StatePart::m_scales},
      {"codes of second moments", StatePart::v_codes},
      {"scales of second moments", StatePart::v_scales},
      {"averaged weights", StatePart::ema}};
  for (const auto& [name, part] : parts)
    if (const TensorView t = context_.state(chunk, part)) add(name, t);
}

void Integrity::add_replicated(int chunk, RankCopies& mine) {
  const Plan& plan = context_.plan();
  if (plan.mesh.tp == 1) return;
  const Coord here = context_.coord();
  const TensorView weights = context_.weights(chunk);
  BitDigest all;
  for (const FlatEntry& entry : plan.chunks[static_cast<size_t>(chunk)].parameters.entries) {
    const Parameter& parameter = plan.architecture.layers[static_cast<size_t>(entry.layer)]
                                     .parameters[static_cast<size_t>(entry.parameter)];
    if (parameter.split != Split::replicated) continue;
    const TensorView piece = weights.slice_flat(entry.offset, entry.offset + entry.elements);
    const uint64_t digest = digest_of(piece.data, piece.bytes());
    all.add(reinterpret_cast<const std::byte*>(&digest), sizeof(digest));
  }
  mine.copies.push_back({.what = format("parameters of chunk {} that all tensor ranks hold (pp{} "
                                        "dp{})",
                                        chunk, here.pp, here.dp),
                         .digest = all.value()});
}

void Integrity::check(Engine& engine, int64_t step) {
  RankCopies mine{
      .place = format("{} on {}", control_.place, host_name()), .copies = {}, .own_faults = {}};
  for (int chunk : context_.chunks()) {
    context_.bring(chunk);
    add_weights(chunk, mine);
    add_state(chunk, mine);
    add_replicated(chunk, mine);
  }
  const std::vector<int>& chunks = context_.chunks();
  if (!chunks.empty()) {
    const int chunk = chunks[checks_++ % chunks.size()];
    context_.bring(chunk);
    if (!engine.repeats(chunk))
      mine.own_faults.push_back(
          format("its device computed chunk {} twice, with other bits", chunk));
  }
  std::vector<RankCopies> ranks;
  for (const std::string& text : control_.gather_text(text_of(mine)))
    ranks.push_back(rank_copies(text));
  const std::vector<std::string> faults = find_corruption(ranks);
  if (faults.empty()) return;
  throw SharedError(
      ExitCode::failure,
      format("silent corruption, found after step {}:\n  {}\nThe state is not saved. A "
             "rank that comes up again has faulty memory or a faulty device: leave its "
             "host out.",
             step, join(faults, "\n  ")));
}

}  // namespace voltapile
