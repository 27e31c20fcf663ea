#include "nccl_communicator.hpp"

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <thread>

#include "stream.hpp"

namespace voltapile::cuda {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return ncclFloat16;
    case DType::bf16: return ncclBfloat16;
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::u8: return ncclUint8;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
  }
  throw Error(ExitCode::failure, "no such type");
}

ncclRedOp_t operation_of(Reduction op) {
  switch (op) {
    case Reduction::sum: return ncclSum;
    case Reduction::max: return ncclMax;
    case Reduction::min: return ncclMin;
  }
  throw Error(ExitCode::failure, "no such reduction");
}

// Before NCCL first looks; what the user has set stays.
void prepare_environment() {
  static const bool once = [] {
    // Sums inside the switch: another order, and memory of the machine's that a crash leaves
    // behind.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    // All rings and trees when the communicator is made: memory is final before the first step.
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    // Registering a recording's buffers would make ranks wait for each other while they record.
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
    return true;
  }();
  static_cast<void>(once);
}

std::string hex_of(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal) text += format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}
ncclUniqueId id_of(const std::string& hex) {
  ncclUniqueId id;
  VP_CHECK(hex.size() == 2 * sizeof(id.internal), "an NCCL id of {} digits", hex.size());
  for (size_t i = 0; i < sizeof(id.internal); ++i)
    id.internal[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return id;
}

struct Joined {
  ncclResult_t code = ncclSuccess;
  ncclComm_t comm = nullptr;
  std::string words;
};

// NCCL waits here for all ranks and cannot be told to stop. Should one be lost, the waiting thread
// is left behind: the job ends.
ncclComm_t join(Communicator& host, const Context& context, const ncclUniqueId& id,
                const std::string& label) {
  std::packaged_task<Joined()> task(
      [id, size = host.size(), rank = host.rank(), gpu = context.gpu().ordinal] {
        Joined joined;
        cudaSetDevice(gpu);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 1;
        joined.code = ncclCommInitRankConfig(&joined.comm, size, id, rank, &config);
        if (joined.code != ncclSuccess) joined.words = ncclGetLastError(nullptr);
        return joined;
      });
  std::future<Joined> future = task.get_future();
  std::thread thread(std::move(task));
  const auto began = std::chrono::steady_clock::now();
  const std::chrono::duration<double> limit(NcclWatch::instance().limit_seconds());
  while (future.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    try {
      host.poll_error();
      if (std::chrono::steady_clock::now() - began > limit)
        throw Error(ExitCode::failure,
                    format("{}: not all ranks came within {:.0f} s", label, limit.count()));
    } catch (...) {
      thread.detach();
      throw;
    }
  }
  thread.join();
  const Joined joined = future.get();
  if (joined.code == ncclSuccess) return joined.comm;
  host.poll_error();  // a lost rank is the cause, and NCCL's complaint its echo
  throw Error(ExitCode::failure,
              format("{}: {} ({})", label, ncclGetErrorString(joined.code), joined.words));
}

}  // namespace

void check_nccl(ncclResult_t code, const std::string& what) {
  if (code == ncclSuccess) return;
  throw Error(ExitCode::failure,
              format("{}: {} ({})", what, ncclGetErrorString(code), ncclGetLastError(nullptr)));
}

NcclCommunicator::NcclCommunicator(std::unique_ptr<Communicator> host_only, Device& device,
                                   Context& context)
    : DeviceCommunicator(std::move(host_only), device, context),
      exceptions_at_birth_(std::uncaught_exceptions()) {
  if (size() == 1) return;
  prepare_environment();
  context_.enter();
  const std::string label = format("making NCCL's communicator '{}' on {}", name, place);
  ncclUniqueId mine{};
  if (rank() == 0) check_nccl(ncclGetUniqueId(&mine), label);
  const ncclUniqueId id = id_of(host().gather_text(hex_of(mine)).front());
  end_ = NcclWatch::instance().add(join(host(), context_, id, label), context_, host());
}

NcclCommunicator::~NcclCommunicator() {
  if (end_ == nullptr) return;
  if (std::uncaught_exceptions() > exceptions_at_birth_)
    abort(format("{} failed; its own message says why", place));
  if (last_ != nullptr) end_->record_last(last_);
  NcclWatch::instance().retire(end_);
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  auto part = host().split(color, key);
  return part == nullptr ? nullptr : on_device(std::move(part), device_, Transport::nccl);
}

void NcclCommunicator::poll_error() {
  host().poll_error();
  if (context_.failed()) std::rethrow_exception(context_.failure());
}

void NcclCommunicator::abort(const std::string& why) {
  host().abort(why);
  context_.fail(std::make_exception_ptr(
      PeerFailure(format("'{}' on {} was given up: {}", name, place, why))));
  NcclWatch::instance().wake();
}

template <class Call>
void NcclCommunicator::enqueue(const char* call_name, Stream& stream, Call call) {
  if (context_.failed()) std::rethrow_exception(context_.failure());
  last_ = handle_of(stream);
  end_->set_label(call_name, name, place);
  end_->begin_call(last_);
  const ncclResult_t code = call(end_->comm(), last_);
  if (code != ncclSuccess && context_.failed()) std::rethrow_exception(context_.failure());
  check_nccl(code, end_->label());
  end_->end_call(last_);
}

void NcclCommunicator::reduce_all(const TensorView& t, Reduction op, Stream& stream) {
  enqueue("all_reduce", stream, [&](ncclComm_t comm, cudaStream_t lane) {
    return ncclAllReduce(t.data, t.data, static_cast<size_t>(t.elements()), type_of(t.dtype),
                         operation_of(op), comm, lane);
  });
}

void NcclCommunicator::scatter(const TensorView& in, const TensorView& out, Reduction op,
                               Stream& stream) {
  enqueue("reduce_scatter", stream, [&](ncclComm_t comm, cudaStream_t lane) {
    return ncclReduceScatter(in.data, out.data, static_cast<size_t>(out.elements()),
                             type_of(out.dtype), operation_of(op), comm, lane);
  });
}

void NcclCommunicator::gather(const TensorView& in, const TensorView& out, Stream& stream) {
  enqueue("all_gather", stream, [&](ncclComm_t comm, cudaStream_t lane) {
    return ncclAllGather(in.data, out.data, static_cast<size_t>(in.elements()), type_of(in.dtype),
                         comm, lane);
  });
}

void NcclCommunicator::spread(const TensorView& t, int root, Stream& stream) {
  enqueue("broadcast", stream, [&](ncclComm_t comm, cudaStream_t lane) {
    return ncclBroadcast(t.data, t.data, static_cast<size_t>(t.elements()), type_of(t.dtype), root,
                         comm, lane);
  });
}

void NcclCommunicator::swap(std::span<const Transfer> transfers, Stream& stream) {
  enqueue("exchange", stream, [&](ncclComm_t comm, cudaStream_t lane) {
    ncclResult_t code = ncclGroupStart();
    for (const Transfer& transfer : transfers) {
      if (code != ncclSuccess) break;
      const TensorView& t = transfer.tensor;
      const auto count = static_cast<size_t>(t.elements());
      code = transfer.direction == Direction::send
                 ? ncclSend(t.data, count, type_of(t.dtype), transfer.peer, comm, lane)
                 : ncclRecv(t.data, count, type_of(t.dtype), transfer.peer, comm, lane);
    }
    const ncclResult_t end = ncclGroupEnd();
    return code != ncclSuccess ? code : end;
  });
}

}  // namespace voltapile::cuda
