// Pictures and labels. What a sample is, is a pure function of (seed, run-wide sample index): it
// depends on neither the mesh, nor the batch size, nor the number of workers, nor on where a run
// was resumed.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "voltapile/deck/deck.hpp"

namespace voltapile {

// A set of pictures (channels, height, width) u8 with labels in [0, classes). Thread-safe reads.
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  // `picture` has exactly channels * height * width bytes, or none: then only the label is read.
  virtual void read(int64_t index, std::span<uint8_t> picture, int32_t& label) const = 0;
  virtual std::string describe() const = 0;
  // Of the file that holds this one picture, in its folder; empty where there is none.
  virtual std::string name(int64_t /*index*/) const { return ""; }
};

enum class Part { train, test };
// Opens and checks the source that [data] names; an IDX file is read whole into memory, so call
// this once per process and share the result. Error(bad_data) names the file, what is wrong with it
// and the fix: not there, a directory, a truncated gzip stream, a wrong IDX magic, sizes that are
// not model.image/channels, counts that differ between pictures and labels, a label at or beyond
// model.classes (with its index). Error(bad_input) when the key itself is missing, or for a format
// that this version does not read yet.
std::shared_ptr<const Source> open_source(const Deck& deck, Part part);

// Pictures of the deck's model without labels (each is then 0): an IDX file, or a folder of PNG and
// JPEG files, which are fitted to model.image (docs/FINE_TUNING.md) when they are read, and then
// refused by Error(bad_data) if they are damaged. Errors as above, with `key` as what names it.
std::shared_ptr<const Source> open_pictures(const Deck& deck, const std::string& key,
                                            const std::string& path);

// Host memory of one step's samples of one data rank.
struct BatchMemory {
  std::span<uint8_t>
      pictures;  // samples * channels * height * width; may be empty (rank without the first chunk)
  std::span<int32_t> labels;  // samples; may be empty
};

struct LoaderOptions {
  uint64_t seed = 0;
  bool shuffle = true;  // each epoch in its own order; false: in file order (evaluation)
  bool flip = false;    // random horizontal flip, training only
  int64_t shift =
      0;  // random shift by up to this many pixels in each direction, edges filled with 0
  int64_t channels = 0, height = 0, width = 0;
  int64_t samples_per_step = 0;  // over all data ranks
  int64_t rank_offset = 0;       // first sample of this data rank within a step
  int64_t rank_samples = 0;      // its samples per step
  int64_t first_sample = 0;      // run-wide index at which the first step starts
  int64_t end_sample = -1;  // samples at or beyond are padding: zero pictures, label 0 (-1: never)
  int workers = 1;
};

// Reads ahead into a ring of batches (ring.size() >= 2) with threads of its own; nothing allocates
// after the constructor. Sample k of the run is picture permuted(k % size) of epoch k / size. The
// caller owns the ring's memory and keeps it until the loader is gone.
class Loader {
 public:
  Loader(std::shared_ptr<const Source> source, const LoaderOptions& options,
         std::vector<BatchMemory> ring);
  ~Loader();
  // The next step's batch; blocks until it is there. It stays valid until release(). Rethrows a
  // worker's error when its step is due, so every step before it is still given out.
  const BatchMemory& next();
  // The oldest batch that next() gave out and that was not released may be overwritten.
  void release();
  double waited_seconds() const;  // host time spent blocked in next()

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace voltapile
