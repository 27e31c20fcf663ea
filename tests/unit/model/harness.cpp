#include "harness.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "voltapile/base/philox.hpp"

namespace voltapile::test {

struct Runner::Impl {
  struct Micro {  // of one chunk
    Buffer saved, deferred, output, input_gradient;
  };
  struct Chunk {
    ChunkShape shape;
    std::unique_ptr<ChunkModel> model;
    Buffer weights, gradients, workspace;
    std::vector<Micro> micros;
  };

  const Architecture& a;
  Options options;
  Communicator& tensor;
  std::unique_ptr<Device> device = make_cpu_device(1);
  std::vector<std::unique_ptr<ChunkModel>> models;
  std::vector<Chunk> chunks;
  StepState step_state;
  Sizes sizes;
  std::vector<Batch> batches;
  std::vector<double> loss = {0}, correct = {0, 0};

  Impl(const Architecture& architecture, const Options& o, Communicator& t)
      : a(architecture), options(o), tensor(t) {
    sizes = {o.micro, tensor.size(), o.sequence, o.working, o.recompute, o.rebuild_attention};
    step_state.loss_scale = o.loss_scale;
    ModelContext context{&a, &device->kernels(), &device->stream(Lane::compute), &tensor, sizes};
    context.seed = 8;  // drop path at 0.4 keeps some samples of a micro-batch and drops others
    const auto channels = static_cast<size_t>(a.model.channels);
    context.pixel_mean = o.pixel_mean.empty() ? std::vector<double>(channels, 0.5) : o.pixel_mean;
    context.pixel_std = o.pixel_std.empty() ? std::vector<double>(channels, 0.25) : o.pixel_std;
    std::vector<int> borders{0};
    borders.insert(borders.end(), o.cuts.begin(), o.cuts.end());
    borders.push_back(static_cast<int>(a.layers.size()));
    for (size_t i = 0; i + 1 < borders.size(); ++i) add_chunk(context, borders[i], borders[i + 1]);
  }

  void add_chunk(const ModelContext& context, int first, int end) {
    Chunk& chunk = chunks.emplace_back();
    chunk.shape = {first, end, options.segment_layers, options.training};
    chunk.model = std::make_unique<ChunkModel>(context, chunk.shape);
    const auto elements = static_cast<size_t>(chunk.model->layout().elements);
    chunk.weights = device->allocate(elements * bytes_of(sizes.working), "weights");
    chunk.gradients = device->allocate(elements * bytes_of(acc()), "gradients");
    chunk.workspace = device->allocate(bytes(chunk).workspace, "workspace");
    // Gaps between parameters are nobody's: NaN there would show only in the optimizer.
    std::memset(chunk.weights.data(), 0, chunk.weights.bytes());
  }

  DType acc() const { return accumulate_type(sizes.working); }
  ChunkBytes bytes(const Chunk& chunk) const {
    return chunk_bytes(a, chunk.shape, sizes, options.split_backward);
  }
  TensorView flat(const Chunk& chunk, const Buffer& buffer, DType type) const {
    return {buffer.data(), type, {chunk.model->layout().elements}};
  }
  TensorView boundary(const Buffer& buffer) const {
    const Tensor tensor_of = boundary_tensor(a, sizes);
    return {buffer.data(), tensor_of.dtype, tensor_of.shape};
  }

  ChunkMemory memory(size_t c, size_t m) {
    Chunk& chunk = chunks[c];
    Micro& micro = chunk.micros[m];
    ChunkMemory memory;
    memory.weights = flat(chunk, chunk.weights, sizes.working);
    memory.gradients = flat(chunk, chunk.gradients, acc());
    memory.saved = micro.saved.data();
    memory.deferred = options.split_backward ? micro.deferred.data() : nullptr;
    memory.workspace = chunk.workspace.data();
    if (c > 0) {
      memory.input = boundary(chunks[c - 1].micros[m].output);
      memory.input_gradient = boundary(micro.input_gradient);
    } else {
      memory.pictures = {batches[m].pictures.data(),
                         DType::u8,
                         {sizes.micro, a.model.channels, a.model.image[0], a.model.image[1]}};
    }
    if (c + 1 < chunks.size()) {
      memory.output = boundary(micro.output);
      memory.output_gradient = boundary(chunks[c + 1].micros[m].input_gradient);
    } else {
      Batch& batch = batches[m];
      memory.targets.classes = a.model.classes;
      memory.targets.smoothing = options.training ? static_cast<float>(a.label_smoothing) : 0;
      if (batch.targets.empty())
        memory.targets.labels = {batch.labels.data(), DType::i32, {sizes.micro}};
      else
        memory.targets.probabilities = {
            batch.targets.data(), DType::f32, {sizes.micro, a.model.classes}};
    }
    return memory;
  }

  MicroStep micro_step(size_t m) {
    MicroStep step;
    step.state = &step_state;
    step.sample_offset = static_cast<int64_t>(m) * sizes.micro;
    step.valid = options.valid < 0 ? sizes.micro : options.valid;
    step.loss_factor =
        1.0 / static_cast<double>(static_cast<int64_t>(batches.size()) * sizes.micro);
    step.loss = {loss.data(), DType::f64, {1}};
    if (!options.training) step.correct = {correct.data(), DType::f64, {2}};
    return step;
  }

  void prepare(const std::vector<Batch>& micros) {
    batches = micros;
    for (Chunk& chunk : chunks) {
      const ChunkBytes size = bytes(chunk);
      while (chunk.micros.size() < micros.size()) {
        Micro micro;
        const size_t boundary_bytes = boundary_tensor(a, sizes).bytes();
        micro.saved = device->allocate(size.saved, "saved");
        micro.deferred = device->allocate(size.deferred, "deferred");
        micro.output = device->allocate(boundary_bytes, "output");
        micro.input_gradient = device->allocate(boundary_bytes, "input gradient");
        chunk.micros.push_back(std::move(micro));
      }
      std::memset(chunk.gradients.data(), 0, chunk.gradients.bytes());
    }
    loss = {0};
    correct = {0, 0};
  }

  void forward() {
    for (size_t m = 0; m < batches.size(); ++m)
      for (size_t c = 0; c < chunks.size(); ++c)
        chunks[c].model->forward(micro_step(m), memory(c, m));
  }

  // As a plan with memory.activations = "int8" stores a micro-batch and brings it back.
  void store(const Chunk& chunk, const Micro& micro) {
    const ChunkLayers layers{chunk.shape.first_layer, chunk.shape.end_layer,
                             chunk.shape.segment_layers};
    Stream& stream = device->stream(Lane::compute);
    Rounding rounding{.seed = options.stored_seed};
    for (const PlacedTensor& placed : chunk_saved(a, layers, sizes).tensors) {
      if (placed.tensor.exact) continue;
      const int64_t n = placed.tensor.shape.elements();
      const int64_t blocks = (n + kQuantiseBlock - 1) / kQuantiseBlock;
      const Buffer codes = device->allocate(static_cast<size_t>(n), "codes");
      const Buffer scales = device->allocate(static_cast<size_t>(blocks) * sizeof(float), "scales");
      const TensorView view{micro.saved.data() + placed.offset, placed.tensor.dtype, {n}};
      const TensorView bytes{codes.data(), DType::u8, {n}};
      const TensorView scale{scales.data(), DType::f32, {blocks}};
      device->kernels().quantise_8bit(view, rounding, bytes, scale, stream);
      device->kernels().dequantise_8bit(bytes, scale, view, stream);
      wait();
      rounding.first_index += blocks * kQuantiseBlock;
    }
  }

  void backward() {
    if (options.stored_seed)
      for (const Chunk& chunk : chunks)
        for (const Micro& micro : chunk.micros) store(chunk, micro);
    for (size_t m = 0; m < batches.size(); ++m) {
      for (size_t c = chunks.size(); c-- > 0;) {
        ChunkModel& model = *chunks[c].model;
        if (options.segment_layers != 0) model.recompute(micro_step(m), memory(c, m));
        if (options.split_backward) model.backward_input(micro_step(m), memory(c, m));
        else model.backward(micro_step(m), memory(c, m));
      }
    }
    if (!options.split_backward) return;
    for (size_t m = 0; m < batches.size(); ++m)
      for (Chunk& chunk : chunks)
        chunk.model->backward_weight(micro_step(m),
                                     memory(static_cast<size_t>(&chunk - chunks.data()), m));
  }

  void wait() { device->wait_on_host(device->record(device->stream(Lane::compute))); }
};

Runner::Runner(const Architecture& a, const Options& options, Communicator& tensor)
    : impl_(std::make_unique<Impl>(a, options, tensor)) {}
Runner::~Runner() = default;

void Runner::set_weights(const Values& whole) {
  for (size_t c = 0; c < chunks(); ++c) {
    for (const FlatEntry& entry : layout(c).entries) {
      const Parameter& p = impl_->a.layers[static_cast<size_t>(entry.layer)]
                               .parameters[static_cast<size_t>(entry.parameter)];
      std::vector<double> local(static_cast<size_t>(entry.elements), 0.0);
      const int64_t whole_columns = p.shape.elements() / p.shape[0];
      const Shape shape = local_shape(p, impl_->sizes.tp);
      const int64_t local_columns = shape.elements() / shape[0];
      for (const Rectangle& r : placement(p, impl_->sizes.tp, impl_->tensor.rank()))
        for (int64_t i = 0; i < r.rows; ++i)
          for (int64_t j = 0; j < r.columns; ++j)
            local[static_cast<size_t>((r.local_row + i) * local_columns + r.local_column + j)] =
                whole.at(p.name)[static_cast<size_t>((r.whole_row + i) * whole_columns +
                                                     r.whole_column + j)];
      write_values(weights(c).slice_flat(entry.offset, entry.offset + entry.elements), local);
    }
  }
}

double Runner::forward(const std::vector<Batch>& micros) {
  impl_->prepare(micros);
  impl_->forward();
  impl_->wait();
  const auto samples =
      static_cast<double>(static_cast<int64_t>(micros.size()) * impl_->sizes.micro);
  return impl_->loss[0] / samples;
}

double Runner::step(const std::vector<Batch>& micros) {
  const double loss = forward(micros);
  impl_->backward();
  impl_->wait();
  return loss;
}

void Runner::add_gradients(Values& whole) const {
  for (size_t c = 0; c < chunks(); ++c) {
    for (const FlatEntry& entry : layout(c).entries) {
      const Parameter& p = impl_->a.layers[static_cast<size_t>(entry.layer)]
                               .parameters[static_cast<size_t>(entry.parameter)];
      std::vector<double>& sum = whole[p.name];
      sum.resize(static_cast<size_t>(p.shape.elements()));
      const bool summand =
          p.tensor_gradient == TensorGradient::partial ||
          (p.tensor_gradient == TensorGradient::partial_if_sequence && impl_->sizes.sequence);
      if (p.split == Split::replicated && !summand && impl_->tensor.rank() != 0) continue;
      const std::vector<double> local =
          read_values(gradients(c).slice_flat(entry.offset, entry.offset + entry.elements));
      const int64_t whole_columns = p.shape.elements() / p.shape[0];
      const Shape shape = local_shape(p, impl_->sizes.tp);
      const int64_t local_columns = shape.elements() / shape[0];
      for (const Rectangle& r : placement(p, impl_->sizes.tp, impl_->tensor.rank()))
        for (int64_t i = 0; i < r.rows; ++i)
          for (int64_t j = 0; j < r.columns; ++j)
            sum[static_cast<size_t>((r.whole_row + i) * whole_columns + r.whole_column + j)] +=
                local[static_cast<size_t>((r.local_row + i) * local_columns + r.local_column + j)];
    }
  }
}

std::vector<double> Runner::logits() const {
  Impl& r = *impl_;
  const Impl::Chunk& chunk = r.chunks.back();
  const ChunkLayers layers{chunk.shape.first_layer, chunk.shape.end_layer,
                           chunk.shape.segment_layers};
  const int head = chunk.shape.end_layer - 1;
  const TensorLayout saved = chunk_saved(r.a, layers, r.sizes);
  const PlacedTensor* placed = saved.find(head, "logits");
  VP_CHECK(placed != nullptr && r.options.training, "logits are kept in training only");
  const std::vector<double> local = read_values({chunk.micros.back().saved.data() + placed->offset,
                                                 placed->tensor.dtype, placed->tensor.shape});
  const int64_t columns = placed->tensor.shape[1], first = columns * r.tensor.rank();
  std::vector<double> whole(static_cast<size_t>(r.sizes.micro * r.a.model.classes), 0.0);
  for (int64_t s = 0; s < r.sizes.micro; ++s)
    for (int64_t k = 0; k < columns && first + k < r.a.model.classes; ++k)
      whole[static_cast<size_t>(s * r.a.model.classes + first + k)] =
          local[static_cast<size_t>(s * columns + k)];
  return whole;
}

std::vector<double> Runner::correct() const { return impl_->correct; }
size_t Runner::chunks() const { return impl_->chunks.size(); }
TensorView Runner::weights(size_t c) const {
  return impl_->flat(impl_->chunks[c], impl_->chunks[c].weights, impl_->sizes.working);
}
TensorView Runner::gradients(size_t c) const {
  return impl_->flat(impl_->chunks[c], impl_->chunks[c].gradients, impl_->acc());
}
const FlatLayout& Runner::layout(size_t c) const { return impl_->chunks[c].model->layout(); }
Device& Runner::device() { return *impl_->device; }
StepState& Runner::state() { return impl_->step_state; }

Outcome run_solo(const Architecture& a, const Options& options, const Values& weights,
                 const std::vector<Batch>& micros) {
  const auto solo = make_solo();
  Runner runner(a, options, *solo);
  runner.set_weights(weights);
  Outcome outcome;
  outcome.loss = runner.step(micros);
  runner.add_gradients(outcome.gradients);
  return outcome;
}

Outcome run_tensor(const Architecture& a, const Options& options, int tp, const Values& weights,
                   const std::vector<Batch>& micros) {
  Outcome outcome;
  std::mutex mutex;
  spawn_ranks(tp, [&](std::unique_ptr<Communicator> world) {
    Runner runner(a, options, *world);
    runner.set_weights(weights);
    const double loss = runner.step(micros);
    const std::lock_guard lock(mutex);
    VP_CHECK(outcome.loss == 0 || outcome.loss == loss, "tensor ranks disagree on the loss");
    outcome.loss = loss;
    runner.add_gradients(outcome.gradients);
  });
  return outcome;
}

Difference largest_difference(const Architecture& a, const Values& x, const Values& y) {
  Difference largest;
  for (const Layer& layer : a.layers) {
    double scale = 0;
    for (const Parameter& p : layer.parameters)
      for (double value : y.at(p.name)) scale = std::max(scale, std::abs(value));
    for (const Parameter& p : layer.parameters) {
      const std::vector<double>&u = x.at(p.name), &v = y.at(p.name);
      VP_CHECK(u.size() == v.size(), "{} and {} values of {}", u.size(), v.size(), p.name);
      for (size_t i = 0; i < u.size(); ++i) {
        if (u[i] == v[i]) continue;  // also where all of a layer is zero
        const double difference = std::abs(u[i] - v[i]) / scale;
        const std::string where = format("{}[{}]: {} and {}", p.name, i, u[i], v[i]);
        if (std::isnan(difference)) return {difference, where};
        if (difference > largest.value) largest = {difference, where};
      }
    }
  }
  return largest;
}

}  // namespace voltapile::test
