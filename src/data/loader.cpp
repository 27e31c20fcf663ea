#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "voltapile/base/error.hpp"
#include "voltapile/base/philox.hpp"
#include "voltapile/data/data.hpp"

#include "augment.hpp"

namespace voltapile {
namespace {

// Small enough that a worker never delays the end of a run for long.
constexpr int64_t kMostSamplesPerPiece = 64;

}  // namespace

// Steps count from 0 at first_sample and live in ring slot (step % ring.size()). All counters are
// guarded by `mutex`; a slot's memory belongs to the workers from the moment its step is claimed
// until its last piece is filled, and to the caller from then on until release().
struct Loader::Impl {
  struct Piece {
    int64_t step, begin, end;  // samples [begin, end) of this data rank
  };

  std::shared_ptr<const Source> source;
  LoaderOptions options;
  std::vector<BatchMemory> ring;
  size_t picture_bytes = 0;
  int64_t samples_per_piece = 0, pieces_per_step = 0;

  std::mutex mutex;
  std::condition_variable may_claim, may_take;
  std::vector<int64_t> pieces_left;             // of the step that a slot holds
  int64_t claimed_step = 0, claimed_piece = 0;  // the next piece to be claimed
  int64_t taken = 0, released = 0;              // steps
  int64_t failed_step = std::numeric_limits<int64_t>::max();
  std::exception_ptr failure;
  bool stopping = false;
  double waited_seconds = 0;

  std::vector<std::thread> workers;

  size_t slot_of(int64_t step) const { return static_cast<size_t>(step) % ring.size(); }

  // The next piece in order, so that every step before a failed one is filled all the same.
  std::optional<Piece> claim() {
    std::unique_lock lock(mutex);
    may_claim.wait(lock, [&] {
      return stopping || failure || claimed_step - released < static_cast<int64_t>(ring.size());
    });
    if (stopping || failure) return std::nullopt;
    if (claimed_piece == 0) pieces_left[slot_of(claimed_step)] = pieces_per_step;
    const int64_t begin = claimed_piece * samples_per_piece;
    const Piece piece{claimed_step, begin,
                      std::min(begin + samples_per_piece, options.rank_samples)};
    if (++claimed_piece == pieces_per_step) {
      claimed_piece = 0;
      ++claimed_step;
    }
    return piece;
  }

  void finish(const Piece& piece, std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (error) {
      if (piece.step < failed_step) {
        failed_step = piece.step;
        failure = std::move(error);
      }
      may_claim.notify_all();
      may_take.notify_all();
    } else if (--pieces_left[slot_of(piece.step)] == 0) {
      may_take.notify_all();
    }
  }

  bool filled(int64_t step) const { return step < claimed_step && pieces_left[slot_of(step)] == 0; }

  void fill(const Piece& piece, std::span<uint8_t> scratch) const {
    const BatchMemory& batch = ring[slot_of(piece.step)];
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const int64_t sample =
          options.first_sample + piece.step * options.samples_per_step + options.rank_offset + i;
      std::span<uint8_t> picture;
      if (!batch.pictures.empty())
        picture = batch.pictures.subspan(static_cast<size_t>(i) * picture_bytes, picture_bytes);
      int32_t label = 0;
      if (options.end_sample >= 0 && sample >= options.end_sample)
        std::fill(picture.begin(), picture.end(), uint8_t{0});
      else read(sample, picture, label, scratch);
      if (!batch.labels.empty()) batch.labels[static_cast<size_t>(i)] = label;
    }
  }

  void read(int64_t sample, std::span<uint8_t> picture, int32_t& label,
            std::span<uint8_t> scratch) const {
    const int64_t epoch = sample / source->size();
    int64_t index = sample % source->size();
    if (options.shuffle)
      index = static_cast<int64_t>(permuted(static_cast<uint64_t>(index),
                                            static_cast<uint64_t>(source->size()), options.seed,
                                            static_cast<uint32_t>(epoch)));
    if (scratch.empty() || picture.empty()) {
      source->read(index, picture, label);
      return;
    }
    source->read(index, scratch, label);
    const Augmentation augmentation =
        draw_augmentation(options.seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(sample),
                          options.flip, options.shift);
    apply(augmentation, options.channels, options.height, options.width, scratch, picture);
  }

  void work(std::span<uint8_t> scratch) {
    while (const std::optional<Piece> piece = claim()) {
      std::exception_ptr error;
      try {
        fill(*piece, scratch);
      } catch (...) { error = std::current_exception(); }
      finish(*piece, std::move(error));
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    may_claim.notify_all();
    for (std::thread& worker : workers) worker.join();
  }
};

Loader::Loader(std::shared_ptr<const Source> source, const LoaderOptions& options,
               std::vector<BatchMemory> ring)
    : impl_(std::make_unique<Impl>()) {
  VP_CHECK(source && source->size() > 0, "a loader needs a source with at least one picture");
  VP_CHECK(ring.size() >= 2, "a ring of {} batches leaves nothing to read ahead into", ring.size());
  VP_CHECK(options.workers >= 1 && options.shift >= 0 && options.first_sample >= 0,
           "{} workers, shift {}, first sample {}", options.workers, options.shift,
           options.first_sample);
  VP_CHECK(options.rank_samples >= 1 && options.rank_offset >= 0 &&
               options.rank_offset + options.rank_samples <= options.samples_per_step,
           "samples {} to {} of a step of {}", options.rank_offset,
           options.rank_offset + options.rank_samples, options.samples_per_step);
  const auto picture_bytes = static_cast<size_t>(options.channels * options.height * options.width);
  const auto samples = static_cast<size_t>(options.rank_samples);
  bool any_pictures = false;
  for (const BatchMemory& batch : ring) {
    VP_CHECK(batch.pictures.empty() || batch.pictures.size() == samples * picture_bytes,
             "a batch of {} pictures has {} bytes, not {}", samples, samples * picture_bytes,
             batch.pictures.size());
    VP_CHECK(batch.labels.empty() || batch.labels.size() == samples, "{} labels for {} samples",
             batch.labels.size(), samples);
    any_pictures = any_pictures || !batch.pictures.empty();
  }
  Impl& me = *impl_;
  me.source = std::move(source);
  me.options = options;
  me.ring = std::move(ring);
  me.picture_bytes = picture_bytes;
  // All workers share the step that is due first, rather than each filling one of its own.
  me.samples_per_piece = std::min((options.rank_samples + options.workers - 1) / options.workers,
                                  kMostSamplesPerPiece);
  me.pieces_per_step = (options.rank_samples + me.samples_per_piece - 1) / me.samples_per_piece;
  me.pieces_left.assign(me.ring.size(), 0);
  const bool augments = any_pictures && (options.flip || options.shift > 0);
  me.workers.reserve(static_cast<size_t>(options.workers));
  try {
    for (int worker = 0; worker < options.workers; ++worker)
      me.workers.emplace_back(
          [&me, scratch = std::vector<uint8_t>(augments ? picture_bytes : 0)]() mutable {
            me.work(scratch);
          });
  } catch (...) {
    me.stop();  // a thread that could not start must not leave the others behind
    throw;
  }
}

Loader::~Loader() { impl_->stop(); }

const BatchMemory& Loader::next() {
  Impl& me = *impl_;
  std::unique_lock lock(me.mutex);
  VP_CHECK(me.taken - me.released < static_cast<int64_t>(me.ring.size()),
           "next() with all {} batches given out and none released", me.ring.size());
  const auto is_due = [&] { return me.filled(me.taken) || me.failed_step <= me.taken; };
  if (!is_due()) {
    const auto begin = std::chrono::steady_clock::now();
    me.may_take.wait(lock, is_due);
    me.waited_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (me.failed_step <= me.taken) std::rethrow_exception(me.failure);
  return me.ring[me.slot_of(me.taken++)];
}

void Loader::release() {
  {
    const std::lock_guard lock(impl_->mutex);
    VP_CHECK(impl_->released < impl_->taken, "release() without a batch given out");
    ++impl_->released;
  }
  impl_->may_claim.notify_all();
}

double Loader::waited_seconds() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->waited_seconds;
}

}  // namespace voltapile
