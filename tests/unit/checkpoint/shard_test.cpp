// What a writer holds of its source, and for how long.
#include "shard.hpp"

#include <atomic>
#include <chrono>
#include <deque>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "sample.hpp"
#include "task_queue.hpp"

namespace voltapile {
namespace {

// Gives few values at a time, room for `slabs` of them, and spoils each that is given back.
class NarrowSource final : public StateSource {
 public:
  NarrowSource(const std::vector<Piece>& pieces, size_t values, size_t slabs)
      : pieces_(pieces), values_(values), slabs_(slabs) {}
  bool averaged() const override { return false; }
  void begin(const std::vector<Tensor>& order) override { order_ = order; }
  std::span<const float> take() override {
    most_ = std::max(most_, held_.size());
    if (held_.size() == slabs_) {
      ++refused_;
      return {};
    }
    const Tensor& tensor = order_[next_];
    const TensorView& view = pieces_[tensor.piece].*tensor.part;
    const size_t all = static_cast<size_t>(view.elements()), count = std::min(values_, all - done_);
    const auto* const from = view.as<float>() + done_;
    held_.emplace_back(from, from + count);
    done_ += count;
    if (done_ == all) {
      ++next_;
      done_ = 0;
    }
    return held_.back();
  }
  void give_back() override {
    ASSERT_FALSE(held_.empty());
    std::fill(held_.front().begin(), held_.front().end(), -1.f);
    spoilt_.push_back(std::move(held_.front()));  // a late reader finds -1, not freed memory
    held_.pop_front();
  }
  size_t most() const { return most_; }
  int refused() const { return refused_; }

 private:
  const std::vector<Piece>& pieces_;
  const size_t values_, slabs_;
  std::vector<Tensor> order_;
  size_t next_ = 0, done_ = 0, most_ = 0;
  int refused_ = 0;
  std::deque<std::vector<float>> held_, spoilt_;
};

TEST(Shard, IsTheSameOutOfASourceWithLittleRoom) {
  for (const auto& [values, slabs] :
       {std::pair<size_t, size_t>{7, 1}, {100, 2}, {1000, 5}, {30'000, 3}}) {
    const sample::Folder folder;
    std::vector<Parameter> model = sample::model();
    model[2].shape = {24, 3, 50, 20};  // long enough to be written past the cache
    const auto world = make_solo();
    const sample::Part part = sample::part_of(model, {1, 1, 1}, 0, 1);
    sample::fill(part, 1);
    NarrowSource source(part.pieces, values, slabs);
    save_checkpoint(folder.path(), *world, sample::state_at(1), model, part.owner, part.pieces, {},
                    &source);
    EXPECT_EQ(source.most(), slabs);
    EXPECT_GT(source.refused(), 0);
    const auto checkpoint = *latest_checkpoint(folder.path());
    EXPECT_TRUE(verify_checkpoint(checkpoint, Depth::datasets).faults.empty());
    const sample::Part loaded = sample::part_of(model, {1, 1, 1}, 0, 2);
    CheckpointReader(checkpoint, loaded.owner).read(loaded.pieces);
    EXPECT_EQ(sample::count_wrong(loaded, 1), 0);
  }
}

TEST(Shard, ANotANumberIsFoundWhereverItStands) {
  for (const int64_t at : {int64_t{0}, int64_t{16'383}, int64_t{16'384}, int64_t{71'999}}) {
    const sample::Folder folder;
    std::vector<Parameter> model = sample::model();
    model[2].shape = {24, 3, 50, 20};
    const auto world = make_solo();
    const sample::Part part = sample::part_of(model, {1, 1, 1}, 0, 1);
    sample::fill(part, 1);
    part.pieces[2].m.as<float>()[at] = std::numeric_limits<float>::quiet_NaN();
    try {
      save_checkpoint(folder.path(), *world, sample::state_at(1), model, part.owner, part.pieces,
                      {});
      ADD_FAILURE() << "nothing was said of element " << at;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("m of patch_embed.proj.weight"), std::string::npos) << text;
      EXPECT_NE(text.find(format("(element {} of", at)), std::string::npos) << text;
    }
    EXPECT_FALSE(latest_checkpoint(folder.path()));
  }
}

TEST(Shard, IsGivenUpBetweenItsTensors) {
  const sample::Folder folder;
  const auto model = sample::model();
  const sample::Part part = sample::part_of(model, {1, 1, 1}, 0, 1);
  sample::fill(part, 1);
  int asked = 0;
  const auto third_time = [&] {
    if (++asked == 3) throw PeerFailure("another rank is lost");
  };
  ViewSource values(part.pieces);
  const auto layout = lay_out_shard(folder.path(), 0, 1, part.owner, part.pieces, false);
  values.begin(layout.order());
  EXPECT_THROW(fill_shard(folder.path(), layout, part.pieces, values, third_time), PeerFailure);
  EXPECT_EQ(asked, 3);
}

TEST(TaskQueue, WaitsForAllOfTheFirst) {
  std::atomic<bool> first = false;
  TaskQueue queue(3);
  queue.add([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    first = true;
  });
  const int64_t second = queue.add([] {});
  queue.wait(second);
  EXPECT_TRUE(first);
  EXPECT_TRUE(queue.ended(second));
}

TEST(TaskQueue, SaysWhatATaskThrewAndBeginsNoOther) {
  std::atomic<int> begun = 0;
  {
    TaskQueue queue(1);
    queue.add([] { throw std::runtime_error("no"); });
    for (int i = 0; i < 100; ++i) queue.add([&] { ++begun; });
    EXPECT_THROW(queue.wait(101), std::runtime_error);
    EXPECT_THROW(queue.wait(1), std::runtime_error);
  }
  EXPECT_EQ(begun, 0);
}

}  // namespace
}  // namespace voltapile
