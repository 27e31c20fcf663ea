#include "voltapile/forecast/fit.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "voltapile/base/error.hpp"
#include "voltapile/base/units.hpp"
#include "voltapile/forecast/forecast.hpp"

namespace voltapile {

namespace {

std::string show(size_t bytes) { return show_bytes(static_cast<double>(bytes)); }

// The three heaviest lines of these homes, for the message.
std::string heaviest(std::vector<MemoryLine> lines, const std::vector<Home>& homes) {
  std::erase_if(lines, [&](const MemoryLine& line) {
    return std::find(homes.begin(), homes.end(), line.home) == homes.end();
  });
  std::sort(lines.begin(), lines.end(),
            [](const MemoryLine& a, const MemoryLine& b) { return a.bytes > b.bytes; });
  if (lines.size() > 3) lines.resize(3);
  std::vector<std::string> texts;
  for (const MemoryLine& line : lines) {
    texts.push_back(format("{} {}", line.name, show_bytes(static_cast<double>(line.bytes))));
  }
  return join(texts, ", ");
}

// The lines of one machine's ranks, and whether they fit.
std::vector<std::string> faults_of(const Plan& plan, const Hardware& hardware,
                                   const std::optional<HostMemory>& here) {
  std::vector<std::string> faults;
  const bool on_cpu = plan.deck.run.device == DeviceKind::cpu;  // whose memory is the host's
  size_t all_hosts = 0, most = 0;
  int heaviest_rank = 0;
  for (int pp = 0; pp < plan.mesh.pp; ++pp) {
    const size_t on_device = bytes_in_use(plan, hardware, pp);
    const size_t on_host = plan.bytes_at(Home::host, pp) + (on_cpu ? on_device : 0);
    if (on_host > most) heaviest_rank = pp;
    most = std::max(most, on_host);
    all_hosts += on_host * static_cast<size_t>(plan.mesh.dp * plan.mesh.tp);
    const auto limit = plan.deck.memory.device_limit_bytes;
    if (!limit || on_device <= static_cast<size_t>(*limit)) continue;
    faults.push_back(format(
        "ranks at pp{} need {} of device memory, more than memory.device_limit = {} (heaviest: {})",
        pp, show(on_device), show(static_cast<size_t>(*limit)),
        heaviest(plan.memory(pp), {Home::device})));
  }
  const auto too_much = [&](size_t needed, std::string_view who, const std::string& bound) {
    const std::vector<Home> homes =
        on_cpu ? std::vector{Home::host, Home::device} : std::vector{Home::host};
    faults.push_back(format("{} need {} of host memory, more than {} (heaviest: {})", who,
                            show(needed), bound, heaviest(plan.memory(heaviest_rank), homes)));
  };
  // How ranks spread over machines is known only to a job: until then all are taken to share one.
  const size_t ranks = static_cast<size_t>(plan.mesh.size());
  const auto of_here = [&](size_t all) {
    return here ? all / ranks * static_cast<size_t>(here->ranks) : all;
  };
  if (const auto limit = plan.deck.memory.host_limit_bytes) {
    if (of_here(all_hosts) > static_cast<size_t>(*limit))
      too_much(of_here(all_hosts), "all ranks of a machine together",
               format("memory.host_limit = {}", show(static_cast<size_t>(*limit))));
  } else if (here && of_here(all_hosts) > here->available) {
    too_much(of_here(all_hosts), format("this machine's {} ranks", here->ranks),
             format("the {} that are available there (memory.host_limit overrides what the system "
                    "claims)",
                    show(here->available)));
  }
  return faults;
}

struct Change {
  std::string text;  // as in a deck
  std::vector<std::string> keys;
  std::function<void(Deck&)> apply;
  // Of changes that differ in a number alone, one is shown: what the number belongs to.
  std::string kind;
};

// A change that fits, and the kinds that it is made of.
struct Found {
  Remedy remedy;
  std::string kind;
};

// What may be given up for memory, each less of one thing. Only what this deck has not done yet.
std::vector<Change> changes_for(const Deck& deck) {
  std::vector<Change> list;
  const auto add = [&](bool sensible, std::string key, std::string value,
                       std::function<void(Deck&)> apply) {
    const std::string text = key + " = " + value;
    if (sensible) list.push_back({text, {key}, std::move(apply), text});
  };
  const auto& m = deck.memory;
  add(m.recompute == Recompute::none && m.activations != ActivationStore::int8, "memory.recompute",
      "\"selective\"", [](Deck& d) { d.memory.recompute = Recompute::selective; });
  add(m.recompute != Recompute::layers, "memory.recompute",
      "\"layers\", memory.checkpoint_every = 1", [](Deck& d) {
        d.memory.recompute = Recompute::layers;
        d.memory.checkpoint_every = 1;
      });
  add(m.recompute != Recompute::layers || m.checkpoint_every, "memory.recompute",
      "\"layers\", memory.checkpoint_every = \"chunk\"", [](Deck& d) {
        d.memory.recompute = Recompute::layers;
        d.memory.checkpoint_every.reset();
      });
  add(m.activations == ActivationStore::working, "memory.activations", "\"int8\"",
      [](Deck& d) { d.memory.activations = ActivationStore::int8; });
  add(m.activations != ActivationStore::host, "memory.activations", "\"host\"",
      [](Deck& d) { d.memory.activations = ActivationStore::host; });
  add(m.optimizer == Home::device, "memory.optimizer", "\"host\"",
      [](Deck& d) { d.memory.optimizer = Home::host; });
  add(m.optimizer != Home::device && m.weights == Home::device, "memory.weights", "\"host\"",
      [](Deck& d) { d.memory.weights = Home::host; });
  const std::string folder =
      m.nvme_dir.empty() ? ", memory.nvme_dir = \"/path/on/a/fast/disk\"" : "";
  const auto on_disk = [](Deck& d) {
    d.memory.optimizer = Home::nvme;
    if (d.memory.nvme_dir.empty()) d.memory.nvme_dir = ".";
  };
  add(m.optimizer != Home::nvme, "memory.optimizer", "\"nvme\"" + folder, on_disk);
  add(m.optimizer != Home::nvme && m.weights != Home::nvme, "memory.optimizer",
      "\"nvme\", memory.weights = \"nvme\"" + folder, [on_disk](Deck& d) {
        on_disk(d);
        d.memory.weights = Home::nvme;
      });
  add(m.optimizer != Home::device && deck.optimizer.moments == MomentStore::f32,
      "optimizer.moments", "\"int8\"", [](Deck& d) { d.optimizer.moments = MomentStore::int8; });
  add(deck.optimizer.zero == 0 && deck.parallel.data > 1, "optimizer.zero", "1",
      [](Deck& d) { d.optimizer.zero = 1; });
  // eval.batch is that of training, unless the deck gives its own.
  const bool own = deck.places.of.contains("eval.batch");
  const int64_t now = deck.batch.micro;
  add(own && deck.eval.batch > now, "eval.batch", std::to_string(now),
      [now](Deck& d) { d.eval.batch = now; });
  for (int64_t micro = now / 2; micro >= 1; micro /= 2) {
    if (deck.batch.global % (micro * deck.parallel.data) != 0) continue;
    Change change{.text = format("batch.micro = {}", micro),
                  .keys = {"batch.micro"},
                  .apply = [micro](Deck& d) { d.batch.micro = d.eval.batch = micro; },
                  .kind = "batch.micro"};
    if (own) {
      change.text += format(", eval.batch = {}", micro);
      change.keys.push_back("eval.batch");
    }
    list.push_back(std::move(change));
  }
  const int most = static_cast<int>(deck.model.depth) / deck.parallel.pipeline;
  for (int chunks : {2 * deck.parallel.chunks, most})
    if (chunks <= most && chunks > deck.parallel.chunks && deck.parallel.schedule != "file")
      list.push_back({format("parallel.chunks = {}, parallel.schedule = \"breadth_first\"", chunks),
                      {"parallel.chunks"},
                      [chunks](Deck& d) {
                        d.parallel.chunks = chunks;
                        d.parallel.schedule = "breadth_first";
                      },
                      "parallel.chunks"});
  return list;
}

bool touch_one_key(const Change& a, const Change& b) {
  return std::find_first_of(a.keys.begin(), a.keys.end(), b.keys.begin(), b.keys.end()) !=
         a.keys.end();
}

// Of each kind the fastest; where a forecast cannot tell them apart, the first, which changes
// least: a micro-batch of one costs what no forecast by FLOPs and bytes knows.
std::vector<Remedy> best_of_each_kind(const std::vector<Found>& found) {
  constexpr double kSame = 1.02;
  std::map<std::string, double> fastest;
  for (const Found& one : found) {
    const auto [at, is_new] = fastest.emplace(one.kind, one.remedy.step_seconds);
    at->second = std::min(at->second, one.remedy.step_seconds);
  }
  std::vector<Remedy> best;
  for (const Found& one : found) {
    const auto at = fastest.find(one.kind);
    if (at == fastest.end() || one.remedy.step_seconds > kSame * at->second) continue;
    best.push_back(one.remedy);
    fastest.erase(at);
  }
  std::stable_sort(best.begin(), best.end(), [](const Remedy& a, const Remedy& b) {
    return a.step_seconds < b.step_seconds;
  });
  return best;
}

std::optional<Found> try_changes(const Plan& plan, const std::vector<const Change*>& changes,
                                 const Hardware& hardware, const std::optional<HostMemory>& here) {
  Deck deck = plan.deck;
  std::vector<std::string> texts;
  std::string kind;
  for (const Change* change : changes) {
    change->apply(deck);
    texts.push_back(change->text);
    kind += change->kind + '\n';
  }
  try {
    const Plan changed = make_plan(deck);
    if (!faults_of(changed, hardware, here).empty()) return std::nullopt;
    return Found{{join(texts, ", "), step_seconds(changed, hardware)}, kind};
  } catch (const Error&) { return std::nullopt; }  // such a deck cannot be
}

}  // namespace

std::vector<Remedy> remedies(const Plan& plan, const Hardware& hardware,
                             const std::optional<HostMemory>& here) {
  const std::vector<Change> changes = changes_for(plan.deck);
  constexpr size_t kShown = 3, kMostKeys = 3;
  std::vector<Found> found;
  std::set<std::string> kinds;                     // of these
  std::vector<std::vector<const Change*>> enough;  // sets that fit
  // All sets of one change, then of two where those are too few, then of three where there is none:
  // never with changes that fit without the rest.
  std::vector<std::vector<size_t>> sets{{}};
  for (size_t size = 1; size <= kMostKeys; ++size) {
    if (kinds.size() >= kShown || (size == kMostKeys && !found.empty())) break;
    std::vector<std::vector<size_t>> larger;
    for (const auto& set : sets)
      for (size_t next = set.empty() ? 0 : set.back() + 1; next < changes.size(); ++next) {
        std::vector<size_t> candidate = set;
        candidate.push_back(next);
        std::vector<const Change*> chosen;
        bool twice = false;
        for (size_t at : candidate) {
          for (const Change* other : chosen) twice |= touch_one_key(*other, changes[at]);
          chosen.push_back(&changes[at]);
        }
        const bool fits_without = std::any_of(enough.begin(), enough.end(), [&](const auto& small) {
          return std::includes(chosen.begin(), chosen.end(), small.begin(), small.end());
        });
        if (twice || fits_without) continue;
        larger.push_back(candidate);
        if (auto one = try_changes(plan, chosen, hardware, here)) {
          kinds.insert(one->kind);
          found.push_back(std::move(*one));
          enough.push_back(chosen);
        }
      }
    sets = std::move(larger);
  }
  std::vector<Remedy> best = best_of_each_kind(found);
  if (best.size() > kShown) best.resize(kShown);
  return best;
}

size_t bytes_in_use(const Plan& plan, const Hardware& hardware, int pp_rank) {
  const size_t planned = plan.device_bytes(pp_rank);
  if (hardware.overhead_bytes == 0) return planned;
  return planned + hardware.overhead_bytes + driver_bytes(plan, pp_rank);
}

void require_fit(const Plan& plan, const Hardware& hardware,
                 const std::optional<HostMemory>& here) {
  const std::vector<std::string> faults = faults_of(plan, hardware, here);
  if (faults.empty()) return;
  std::string text = "it will not fit:\n  " + join(faults, "\n  ");
  const double now = step_seconds(plan, hardware);
  const std::vector<Remedy> list = remedies(plan, hardware, here);
  if (list.empty()) {
    text +=
        "\n  No change of up to three keys makes it fit: more parallel.pipeline or "
        "parallel.tensor ranks, or a smaller model, would; `voltapile plan` shows each part";
  } else {
    text += format("\n  What would make it fit, cheapest first (steps as forecast for {}):",
                   hardware.device);
    for (const Remedy& remedy : list)
      text += format("\n    {}: a step of {} in place of {}", remedy.change,
                     show_seconds(remedy.step_seconds), show_seconds(now));
  }
  throw Error(ExitCode::does_not_fit, text);
}

}  // namespace voltapile
