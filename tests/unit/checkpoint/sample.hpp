// A small model of awkward shapes, cut over a mesh, with values that tell where an element belongs.
// Shared by the checkpoint tests and the program that writes for the Python tests.
#pragma once
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <stdlib.h>

#include "voltapile/checkpoint/checkpoint.hpp"
#include "voltapile/comm/communicator.hpp"
#include "voltapile/mesh/mesh.hpp"

namespace voltapile::sample {

inline std::vector<Parameter> model() {
  std::vector<Parameter> list;
  const auto add = [&](std::string name, Shape shape, Split split) {
    Parameter p;
    p.name = std::move(name);
    p.shape = shape;
    p.split = split;
    p.id = static_cast<uint32_t>(list.size());
    list.push_back(std::move(p));
  };
  add("cls_token", {1, 1, 24}, Split::replicated);
  add("pos_embed", {1, 17, 24}, Split::replicated);
  add("patch_embed.proj.weight", {24, 3, 5, 2}, Split::replicated);
  add("patch_embed.proj.bias", {24}, Split::replicated);
  add("blocks.0.attn.qkv.weight", {72, 24}, Split::qkv);
  add("blocks.0.attn.qkv.bias", {72}, Split::qkv);
  add("blocks.0.attn.proj.weight", {24, 24}, Split::rows);
  add("blocks.0.mlp.fc1.weight", {48, 24}, Split::columns);
  add("blocks.0.mlp.fc1.bias", {48}, Split::columns);
  add("blocks.0.mlp.fc2.weight", {24, 48}, Split::rows);
  add("head.weight", {10, 24}, Split::classes);
  add("head.bias", {10}, Split::classes);
  return list;
}

// Distinct for neighbours, and exact in f32. State: 0 master, 1 m, 2 v.
inline float value(const Parameter& p, int state, int64_t step, int64_t whole_index) {
  const auto salt = static_cast<uint64_t>(p.id) * 7919 + static_cast<uint64_t>(state) * 104729 +
                    static_cast<uint64_t>(step) * 1299709;
  return static_cast<float>((static_cast<uint64_t>(whole_index) * 2654435761u + salt) % 16777213u);
}

// The plain definition of the splits, one element at a time: where element `index` of the local
// tensor lies in the whole one; -1 for padding.
inline int64_t whole_index(const Parameter& p, int tp, int tp_rank, int64_t index) {
  const Shape local = local_shape(p, tp);
  std::vector<int64_t> at(static_cast<size_t>(local.dims()));
  for (int dim = local.dims() - 1; dim >= 0; --dim) {
    at[static_cast<size_t>(dim)] = index % local[dim];
    index /= local[dim];
  }
  switch (p.split) {
    case Split::replicated: break;
    case Split::columns:
    case Split::classes: at[0] += tp_rank * local[0]; break;
    case Split::rows: at[1] += tp_rank * local[1]; break;
    case Split::qkv: {
      const int64_t part = local[0] / 3;
      at[0] = at[0] / part * (p.shape[0] / 3) + tp_rank * part + at[0] % part;
      break;
    }
  }
  if (at[0] >= p.shape[0]) return -1;
  int64_t whole = 0;
  for (int dim = 0; dim < local.dims(); ++dim) {
    whole = whole * p.shape[dim] + at[static_cast<size_t>(dim)];
  }
  return whole;
}

// What one rank of a mesh holds. Layers go round the pipeline; each local tensor is cut over the
// data axis at places drawn from `seed`; a replicated tensor is kept by one tensor rank.
struct Part {
  PieceOwner owner;
  std::vector<Piece> pieces;
  std::vector<std::unique_ptr<std::vector<float>>> memory;
};

enum class Holders { one, all };  // of a replicated tensor

inline Part part_of(const std::vector<Parameter>& model, const Mesh& mesh, int rank, uint64_t seed,
                    Holders holders = Holders::one) {
  const Coord coord = mesh.coord(rank);
  Part part;
  part.owner = {mesh.tp, coord.tp};
  for (const Parameter& p : model) {
    if (static_cast<int>(p.id) % mesh.pp != coord.pp) continue;
    const bool whole_elsewhere =
        p.split == Split::replicated && coord.tp != static_cast<int>(p.id) % mesh.tp;
    if (holders == Holders::one && whole_elsewhere) continue;
    const int64_t elements = local_shape(p, mesh.tp).elements();
    std::mt19937_64 random(seed * 1000 + p.id);
    std::vector<int64_t> cuts = {0, elements};
    for (int i = 1; i < mesh.dp; ++i) {
      cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(elements + 1)));
    }
    std::sort(cuts.begin(), cuts.end());
    Piece piece;
    piece.parameter = &p;
    piece.begin = cuts[static_cast<size_t>(coord.dp)];
    piece.end = cuts[static_cast<size_t>(coord.dp) + 1];
    const int64_t count = piece.end - piece.begin;
    for (TensorView* view : {&piece.master, &piece.m, &piece.v}) {
      part.memory.push_back(
          std::make_unique<std::vector<float>>(static_cast<size_t>(std::max<int64_t>(count, 1)),
                                               std::numeric_limits<float>::quiet_NaN()));
      *view = {part.memory.back()->data(), DType::f32, Shape{count}};
    }
    part.pieces.push_back(piece);
  }
  return part;
}

// Calls f(piece, state, place in the piece, index in the whole tensor or -1).
template <class F>
void for_each_element(const Part& part, const F& f) {
  for (const Piece& piece : part.pieces) {
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const int64_t whole = whole_index(*piece.parameter, part.owner.tp, part.owner.tp_rank, i);
      f(piece, 0, piece.master.as<float>() + (i - piece.begin), whole);
      f(piece, 1, piece.m.as<float>() + (i - piece.begin), whole);
      f(piece, 2, piece.v.as<float>() + (i - piece.begin), whole);
    }
  }
}

// Padding stays NaN: it must never reach a file.
inline void fill(const Part& part, int64_t step) {
  for_each_element(part, [&](const Piece& piece, int state, float* place, int64_t whole) {
    if (whole >= 0) *place = value(*piece.parameter, state, step, whole);
  });
}

// Elements that differ from what fill() would have put there; padding must be zero.
inline int64_t count_wrong(const Part& part, int64_t step) {
  int64_t wrong = 0;
  for_each_element(part, [&](const Piece& piece, int state, const float* place, int64_t whole) {
    const float wanted = whole < 0 ? 0 : value(*piece.parameter, state, step, whole);
    wrong += *place == wanted ? 0 : 1;
  });
  return wrong;
}

inline RunState state_at(int64_t step) {
  RunState state;
  state.step = step;
  state.samples = 32 * step;
  state.seed = 0xFEDCBA9876543210u;
  state.loss_scale = 65536.5;
  state.good_steps = 3;
  state.adam_step = step - 1;
  state.skipped_steps = 1;
  state.rewinds = 2;
  state.deck = "[run]\nname = \"sample\"\n";
  return state;
}

inline void save(const std::filesystem::path& checkpoints, const Mesh& mesh, int64_t step,
                 uint64_t seed, int64_t keep_last = 0, int64_t keep_every = 0) {
  const std::vector<Parameter> parameters = model();
  spawn_ranks(mesh.size(), [&](std::unique_ptr<Communicator> world) {
    const Part part = part_of(parameters, mesh, world->rank(), seed);
    fill(part, step);
    save_checkpoint(checkpoints, *world, state_at(step), parameters, part.owner, part.pieces,
                    {.last = keep_last, .every = keep_every});
  });
}

// Loads on every rank of a mesh; returns how many elements are not as saved.
inline int64_t load_wrong(const std::filesystem::path& checkpoint, const Mesh& mesh, int64_t step,
                          uint64_t seed) {
  const std::vector<Parameter> parameters = model();
  int64_t wrong = 0;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const Part part = part_of(parameters, mesh, rank, seed, Holders::all);
    CheckpointReader(checkpoint, part.owner).read(part.pieces);
    wrong += count_wrong(part, step);
  }
  return wrong;
}

class Folder {
 public:
  Folder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "vp_checkpoint_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline bool full_run() {
  const char* full = std::getenv("VOLTAPILE_FULL");
  return full != nullptr && std::string(full) == "1";
}

}  // namespace voltapile::sample
