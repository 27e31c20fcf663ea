// The typed deck: everything that the user says about a run. Filled by parse_deck from TOML; the
// schema table in src/deck/schema.cpp is the only place that knows key names, defaults, ranges and
// help texts.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "voltapile/base/dtype.hpp"
#include "voltapile/deck/homes.hpp"

namespace voltapile {

enum class DeviceKind { cpu, cuda };
enum class GpuKernels { automatic, volta };
enum class Pool { mean, token };
enum class Position { learned, sine2d };
enum class Recompute { none, layers, selective };
enum class ClipNorm { this_step, previous_step };
enum class MomentStore { f32, int8 };
enum class GradientStore { automatic, f32, working };
// nccl: from GPU to GPU, one rank a GPU. staged: through pinned host memory and the host's
// communicator, for ranks that share a GPU and for clusters without NCCL.
enum class Transport { automatic, nccl, staged };
enum class Sequence { automatic, on, off };
enum class DataFormat { synthetic, idx, folder, tar, hdf5 };
// What a failed save does to the run.
enum class SaveFault { stop, go_on };
// What a run does when it has diverged.
enum class OnDivergence { stop, rewind };
enum class LearningRateSchedule { constant, cosine, linear };

struct Deck {
  struct Run {
    std::string name, dir;
    DeviceKind device{};
    std::optional<int64_t> steps;  // exactly one of steps and epochs
    std::optional<double> epochs;
    uint64_t seed{};
    std::optional<double> walltime_seconds;
    int threads{};    // CPU threads per rank; 0 = automatic
    int log_every{};  // steps between progress lines
    GpuKernels gpu_kernels{};
    std::optional<double> hang_timeout_seconds;  // empty = automatic
    int64_t check_every_steps{};                 // for silent corruption; 0 = never
    int64_t skip_limit{};                        // steps skipped in a row
    double spike_factor{};                       // on the mean of the losses before; 0 = no limit
    OnDivergence on_divergence{};
    int64_t rewind_limit{};
    bool operator==(const Run&) const = default;
  } run;
  struct Model {
    std::array<int64_t, 2> image{};  // height, width in pixels
    std::array<int64_t, 2> patch{};  // height, width in pixels
    int64_t channels{}, dim{}, depth{}, heads{}, mlp{}, classes{};
    Pool pool{};
    Position position{};
    bool qkv_bias{};
    double layer_scale{};  // initial value; 0 = no LayerScale
    bool qk_norm{};
    double drop_path{};  // rate of the last block; grows linearly from 0, as timm's
    double initial_std{};
    std::string init;  // first weights; empty = made. Resolved against the deck's folder
    bool operator==(const Model&) const = default;
  } model;
  struct Loss {
    double label_smoothing{};
    bool operator==(const Loss&) const = default;
  } loss;
  struct Parallel {
    int pipeline{}, data{}, tensor{};
    Sequence sequence{};
    std::string schedule;       // a builder's name, or "file"
    int chunks{};               // chunks per pipeline rank
    std::string schedule_file;  // resolved against the deck's folder
    Transport transport{};
    bool operator==(const Parallel&) const = default;
  } parallel;
  struct Batch {
    int64_t global{}, micro{};  // samples per step; samples per micro-batch
    bool operator==(const Batch&) const = default;
  } batch;
  struct Precision {
    DType type{};                      // f32, bf16, f16
    std::optional<double> loss_scale;  // fixed value; empty = dynamic
    double initial_loss_scale{};
    int64_t growth_interval{};  // good steps before a dynamic scale doubles
    bool tf32{};
    bool operator==(const Precision&) const = default;
  } precision;
  struct Optimizer {
    std::string name;  // "adamw"
    double lr{}, min_lr{}, weight_decay{};
    std::array<double, 2> betas{};
    double eps{}, clip{};  // clip 0 = off
    int64_t warmup_steps{};
    LearningRateSchedule schedule{};
    int zero{};  // 0 or 1
    ClipNorm clip_norm_from{};
    MomentStore moments{};
    double ema{};                     // how slowly the averaged weights move; 0 = none
    std::vector<std::string> freeze;  // patterns of names of parameters that are not trained
    double layer_decay{};             // of the learning rate, from each layer to the one below it
    bool operator==(const Optimizer&) const = default;
  } optimizer;
  struct Memory {
    std::optional<int64_t> checkpoint_every;  // layers; empty = "chunk"
    Recompute recompute{};
    ActivationStore activations{};
    GradientStore gradients{};
    Home optimizer{}, weights{};
    std::string nvme_dir;  // resolved against the deck's folder
    std::optional<int64_t> device_limit_bytes, host_limit_bytes;
    Homes homes() const { return {optimizer, weights, activations}; }
    bool operator==(const Memory&) const = default;
  } memory;
  struct Data {
    DataFormat format{};
    std::string train, train_labels, test, test_labels;  // resolved against the deck's folder
    int64_t synthetic_train{}, synthetic_test{};         // number of made-up pictures
    std::vector<double> mean, std;                       // per channel, of pixel / 255
    bool flip{};
    int64_t shift{};  // random shift in pixels, each direction
    int workers{};    // 0 = automatic
    int prefetch_factor{};
    bool operator==(const Data&) const = default;
  } data;
  struct Eval {
    int64_t every_steps{};  // 0 = only at the end
    int64_t batch{};        // samples per micro-batch in evaluation; 0 = batch.micro
    bool operator==(const Eval&) const = default;
  } eval;
  struct Checkpoint {
    int64_t every_steps{};   // 0 = not by steps
    double every_minutes{};  // 0 = not by time
    int64_t keep_last{};     // 0 = all
    int64_t keep_every{};    // steps; 0 = none is kept for ever
    bool at_end{};
    int64_t pool_bytes{};  // of a rank
    SaveFault on_error{};
    bool fallback{};  // a damaged latest checkpoint gives way to the newest good one
    bool operator==(const Checkpoint&) const = default;
  } checkpoint;
  struct Trace {
    std::string steps;     // "100:105", half open
    double gpu_seconds{};  // between two samples of a GPU; 0 = none are taken
    bool operator==(const Trace&) const = default;
  } trace;

  std::string path;  // where it was read from, for messages
  // Of each key and section that was given: "deck.toml:3:8" or "--set". Decks that say the same are
  // equal, wherever they say it.
  struct Places {
    std::map<std::string, std::string> of;
    bool operator==(const Places&) const { return true; }
  } places;
  // Where `key` was given, or else where it would stand: for messages.
  std::string place(const std::string& key) const;
  bool operator==(const Deck&) const = default;
};

}  // namespace voltapile
