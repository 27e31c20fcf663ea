// Saving and loading over meshes, and what stands in the checkpoints folder at each moment.
#include "voltapile/checkpoint/checkpoint.hpp"

#include <csignal>
#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "folder.hpp"
#include "sample.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;

std::set<std::string> entries(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) { return error; }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ExitCode::done, "");
}
bool mentions(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

// Runs f in a process of its own, for limits that cannot be taken back. True when it returns true.
template <class F>
bool in_child(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    bool good = false;
    try {
      good = f();
    } catch (const std::exception& error) { std::fprintf(stderr, "%s\n", error.what()); }
    std::_Exit(good ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Checkpoint, AnyMeshReadsWhatAnyMeshWrote) {
  const std::vector<Mesh> meshes = {{1, 1, 1}, {2, 1, 1}, {1, 3, 1}, {1, 1, 4},
                                    {1, 2, 2}, {2, 2, 2}, {3, 1, 2}, {1, 3, 4}};
  for (const Mesh& writer : meshes) {
    const sample::Folder folder;
    sample::save(folder.path(), writer, 5, 1);
    const fs::path checkpoint = folder.path() / "step_00000005";
    const Verification found = verify_checkpoint(checkpoint);
    EXPECT_EQ(found.faults, std::vector<std::string>{}) << writer.text();
    EXPECT_EQ(found.tensors, 12);
    EXPECT_EQ(found.shards, writer.size());
    for (const Mesh& reader : meshes) {
      if (!sample::full_run() && reader.size() + writer.size() > 12) continue;
      EXPECT_EQ(sample::load_wrong(checkpoint, reader, 5, 2), 0)
          << writer.text() << " read by " << reader.text();
    }
  }
}

TEST(Checkpoint, RunStateComesBack) {
  const sample::Folder folder;
  sample::save(folder.path(), {1, 2, 1}, 7, 1);
  const RunState got = read_run_state(folder.path() / "step_00000007");
  const RunState want = sample::state_at(7);
  EXPECT_EQ(got.step, want.step);
  EXPECT_EQ(got.samples, want.samples);
  EXPECT_EQ(got.seed, want.seed);
  EXPECT_EQ(got.loss_scale, want.loss_scale);
  EXPECT_EQ(got.good_steps, want.good_steps);
  EXPECT_EQ(got.adam_step, want.adam_step);
  EXPECT_EQ(got.skipped_steps, want.skipped_steps);
  EXPECT_EQ(got.rewinds, want.rewinds);
  EXPECT_EQ(got.deck, want.deck);
}

TEST(Checkpoint, MomentsMayBeLeftOutWhenLoading) {
  const sample::Folder folder;
  sample::save(folder.path(), {1, 2, 1}, 7, 1);
  const auto model = sample::model();
  sample::Part part = sample::part_of(model, {1, 1, 1}, 0, 1);
  std::vector<Piece> weights = part.pieces;
  for (Piece& piece : weights) piece.m = piece.v = {};
  CheckpointReader(folder.path() / "step_00000007", part.owner).read(weights);
  sample::for_each_element(part, [](const Piece& piece, int state, const float* x, int64_t whole) {
    if (state == 0) {
      ASSERT_EQ(*x, sample::value(*piece.parameter, 0, 7, whole));
    } else {
      ASSERT_TRUE(std::isnan(*x));
    }
  });
}

TEST(Checkpoint, LatestMovesAndOldOnesGo) {
  const sample::Folder folder;
  const fs::path& at = folder.path();
  EXPECT_EQ(latest_checkpoint(at), std::nullopt);
  EXPECT_EQ(latest_checkpoint(at / "not_there"), std::nullopt);
  for (int64_t step : {1, 2, 3, 4}) {
    sample::save(at, {1, 2, 1}, step, 1, 2);
    EXPECT_EQ(latest_checkpoint(at), at / step_name(step));
  }
  EXPECT_EQ(entries(at), (std::set<std::string>{"step_00000003", "step_00000004", "latest"}));
  EXPECT_EQ(fs::read_symlink(at / "latest"), "step_00000004");
  EXPECT_EQ(entries(at / "step_00000004"),
            (std::set<std::string>{"index.h5", "shard_00000.h5", "shard_00001.h5"}));
}

TEST(Checkpoint, KeepLastZeroKeepsAll) {
  const sample::Folder folder;
  for (int64_t step : {1, 2, 3}) sample::save(folder.path(), {1, 1, 1}, step, 1, 0);
  EXPECT_EQ(entries(folder.path()).size(), 4u);
}

// Going back to step 2 leaves later steps behind; the one just written must not count as old.
TEST(Checkpoint, TheOneJustWrittenStaysEvenBelowLaterSteps) {
  const sample::Folder folder;
  for (int64_t step : {5, 6, 2}) sample::save(folder.path(), {1, 1, 1}, step, 1, 1);
  EXPECT_EQ(entries(folder.path()), (std::set<std::string>{"step_00000002", "latest"}));
}

TEST(Checkpoint, StrangersInTheFolderAreLeftAlone) {
  const sample::Folder folder;
  const std::set<std::string> strangers = {"step_best", "step_1", "notes.txt",
                                           "step_00000001_copy"};
  for (const std::string& name : strangers) fs::create_directory(folder.path() / name);
  for (int64_t step : {1, 2, 3}) sample::save(folder.path(), {1, 1, 1}, step, 1, 1);
  std::set<std::string> wanted = strangers;
  wanted.insert({"step_00000003", "latest"});
  EXPECT_EQ(entries(folder.path()), wanted);
}

TEST(Checkpoint, TheSameStepIsReplaced) {
  const sample::Folder folder;
  const fs::path checkpoint = folder.path() / "step_00000003";
  sample::save(folder.path(), {1, 1, 2}, 3, 1, 1);
  fs::resize_file(checkpoint / "shard_00001.h5", 100);  // even when it is damaged
  sample::save(folder.path(), {1, 3, 1}, 3, 1, 1);
  EXPECT_EQ(entries(folder.path()), (std::set<std::string>{"step_00000003", "latest"}));
  EXPECT_EQ(verify_checkpoint(checkpoint).faults, std::vector<std::string>{});
  EXPECT_EQ(verify_checkpoint(checkpoint).shards, 3);
}

TEST(Checkpoint, WhatAKilledRunLeftIsTidiedByTheNextSave) {
  const sample::Folder folder;
  const fs::path& at = folder.path();
  sample::save(at, {1, 1, 1}, 3, 1);
  fs::create_directory(at / "step_00000009.partial");
  fs::create_directory(at / "step_00000001.removed");
  fs::create_directory_symlink("nowhere", at / "latest.partial");
  // Killed between the two renames of a replacement: step 3 is at hand under its other name.
  fs::rename(at / "step_00000003", at / "step_00000003.replaced");
  EXPECT_EQ(latest_checkpoint(at), at / "step_00000003.replaced");
  EXPECT_EQ(sample::load_wrong(*latest_checkpoint(at), {1, 2, 1}, 3, 1), 0);
  sample::save(at, {1, 1, 1}, 4, 1);
  EXPECT_EQ(entries(at), (std::set<std::string>{"step_00000003", "step_00000004", "latest"}));
  // Killed after them: the newer one has the name.
  fs::create_directory(at / "step_00000004.replaced");
  sample::save(at, {1, 1, 1}, 5, 1);
  EXPECT_EQ(entries(at),
            (std::set<std::string>{"step_00000003", "step_00000004", "step_00000005", "latest"}));
}

TEST(Checkpoint, ALatestThatNamesNothingIsAnErrorAndNotAFreshStart) {
  const sample::Folder folder;
  sample::save(folder.path(), {1, 1, 1}, 3, 1);
  fs::remove_all(folder.path() / "step_00000003");
  const Error error = error_of([&] { latest_checkpoint(folder.path()); });
  EXPECT_EQ(error.code(), ExitCode::bad_data);
  EXPECT_TRUE(mentions(error, "step_00000003")) << error.what();
}

TEST(Checkpoint, OneRanksFaultEndsAllRanksAndLeavesThePreviousOne) {
  const sample::Folder folder;
  const Mesh mesh{1, 2, 2};
  sample::save(folder.path(), mesh, 1, 1);
  const auto model = sample::model();
  std::atomic<int> told = 0;
  spawn_ranks(mesh.size(), [&](std::unique_ptr<Communicator> world) {
    const sample::Part part = sample::part_of(model, mesh, world->rank(), 1);
    sample::fill(part, 2);
    if (world->rank() == 3) part.pieces.back().v.as<float>()[0] = NAN;
    const Error error = error_of([&] {
      save_checkpoint(folder.path(), *world, sample::state_at(2), model, part.owner, part.pieces,
                      {1});
    });
    EXPECT_EQ(error.code(), ExitCode::failure);
    EXPECT_TRUE(mentions(error, "rank 3")) << error.what();
    EXPECT_TRUE(mentions(error, part.pieces.back().parameter->name)) << error.what();
    ++told;
  });
  EXPECT_EQ(told, 4);
  EXPECT_EQ(entries(folder.path()), (std::set<std::string>{"step_00000001", "latest"}));
  EXPECT_EQ(sample::load_wrong(*latest_checkpoint(folder.path()), mesh, 1, 1), 0);
}

TEST(Checkpoint, ALostRankIsNoFaultOfTheCheckpoint) {
  const sample::Folder folder;
  const auto model = sample::model();
  spawn_ranks(2, [&](std::unique_ptr<Communicator> world) {
    if (world->rank() == 1) return world->abort("rank 1 ran out of memory");
    const sample::Part part = sample::part_of(model, {1, 1, 1}, 0, 1);
    sample::fill(part, 1);
    EXPECT_THROW(save_checkpoint(folder.path(), *world, sample::state_at(1), model, part.owner,
                                 part.pieces, {1}),
                 PeerFailure);
  });
}

TEST(Checkpoint, PiecesThatDoNotCoverTheModelOnceAreRefused) {
  const sample::Folder folder;
  const auto model = sample::model();
  const auto world = make_solo();
  const sample::Part part = sample::part_of(model, {1, 1, 1}, 0, 1);
  sample::fill(part, 2);
  const auto save = [&](const std::vector<Piece>& pieces) {
    save_checkpoint(folder.path(), *world, sample::state_at(2), model, part.owner, pieces, {1});
  };
  std::vector<Piece> pieces = part.pieces;
  pieces[4].end -= 1;
  pieces[4].master = pieces[4].master.slice_flat(0, pieces[4].end);
  pieces[4].m = pieces[4].m.slice_flat(0, pieces[4].end);
  pieces[4].v = pieces[4].v.slice_flat(0, pieces[4].end);
  EXPECT_TRUE(mentions(error_of([&] { save(pieces); }), "blocks.0.attn.qkv.weight"));
  pieces = part.pieces;
  pieces.pop_back();
  EXPECT_TRUE(mentions(error_of([&] { save(pieces); }), "head.bias"));
  EXPECT_EQ(entries(folder.path()), std::set<std::string>{});

  // Row 0 of qkv.bias held twice and its last one by nobody: the count alone looks right.
  spawn_ranks(2, [&](std::unique_ptr<Communicator> both) {
    const sample::Part all = sample::part_of(model, {1, 1, 1}, 0, 1);
    sample::fill(all, 2);
    std::vector<Piece> mine = all.pieces;
    Piece row = mine[5];
    const auto cut = [&](Piece& piece, int64_t begin, int64_t end) {
      for (TensorView* view : {&piece.master, &piece.m, &piece.v}) {
        *view = view->slice_flat(begin, end);
      }
      piece.begin = begin;
      piece.end = end;
    };
    cut(row, 0, 1);
    cut(mine[5], 0, 71);
    if (both->rank() == 1) mine = {row};
    const Error error = error_of([&] {
      save_checkpoint(folder.path(), *both, sample::state_at(2), model, all.owner, mine, {1});
    });
    EXPECT_TRUE(mentions(error, "blocks.0.attn.qkv.bias")) << error.what();
    EXPECT_TRUE(mentions(error, "some of them twice")) << error.what();
  });
}

// A full disk, played by a limit on the size of files. The index is smaller than the shard.
TEST(Checkpoint, ADiskThatFillsUpLeavesThePreviousOne) {
  const sample::Folder folder;
  sample::save(folder.path(), {1, 1, 1}, 1, 1);
  const auto whole = fs::file_size(folder.path() / "step_00000001" / "shard_00000.h5");
  // Cuts in the data and in HDF5's metadata, first byte to last.
  for (const double share : {0.0, 0.01, 0.3, 0.6, 0.9, 0.99, 0.9999}) {
    const auto limit = static_cast<rlim_t>(share * static_cast<double>(whole));
    EXPECT_TRUE(in_child([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit bytes = {limit, limit};
      setrlimit(RLIMIT_FSIZE, &bytes);
      try {
        sample::save(folder.path(), {1, 1, 1}, 2, 1, 1);
      } catch (const Error& error) { return error.code() == ExitCode::failure; }
      return false;
    })) << limit
        << " of " << whole;
    EXPECT_EQ(entries(folder.path()), (std::set<std::string>{"step_00000001", "latest"})) << limit;
  }
  EXPECT_EQ(verify_checkpoint(folder.path() / "latest").faults, std::vector<std::string>{});
}

// A disk that is really full: a small file system in memory, which a namespace of our own lets us
// mount where the system allows that.
TEST(Checkpoint, ADeviceWithoutSpaceLeavesThePreviousOne) {
  const sample::Folder folder;
  const fs::path disk = folder.path() / "disk";
  fs::create_directory(disk);
  const auto mount_disk = [&](const std::string& options, unsigned long flags) {
    return mount("tmpfs", disk.c_str(), "tmpfs", flags, options.c_str()) == 0;
  };
  const auto own_rights = [] {
    if (geteuid() == 0) return unshare(CLONE_NEWNS) == 0;
    // Who is nobody in the new namespace could make no file on a disk of it.
    const std::string user = format("0 {} 1", geteuid()), group = format("0 {} 1", getegid());
    if (unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    return static_cast<bool>(std::ofstream("/proc/self/uid_map") << user << std::flush) &&
           static_cast<bool>(std::ofstream("/proc/self/gid_map") << group << std::flush);
  };
  const auto own_disk = [&] {
    return own_rights() && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount_disk("size=4m", 0);
  };
  if (!in_child(own_disk)) GTEST_SKIP() << "no file system may be mounted here";
  EXPECT_TRUE(in_child([&] {
    if (!own_disk()) return false;
    sample::save(disk, {1, 2, 1}, 1, 1);
    uintmax_t used = 0;
    for (const auto& entry : fs::recursive_directory_iterator(disk)) {
      if (entry.is_regular_file()) used += (entry.file_size() + 4095) / 4096 * 4;
    }
    const int stride = sample::full_run() ? 4 : 20;
    bool good = true;
    // From no room at all to one page less than enough, in kB.
    for (uintmax_t room = used; room + 8 < 2 * used; room += static_cast<uintmax_t>(stride)) {
      mount_disk(format("size={}k", room), MS_REMOUNT);
      std::string fault = "saved";
      try {
        sample::save(disk, {1, 2, 1}, 2, 1, 1);
      } catch (const Error& error) { fault = error.what(); }
      const bool refused = fault.find("No space left") != std::string::npos;
      good = good && refused && entries(disk) == std::set<std::string>{"step_00000001", "latest"};
      if (!good) {
        std::fprintf(stderr, "room for %ju kB: %s\n", room, fault.c_str());
        break;
      }
    }
    return good && verify_checkpoint(disk / "latest").faults.empty();
  }));
}

TEST(Checkpoint, AFolderThatCannotBeMadeIsAnErrorOnAllRanks) {
  const sample::Folder folder;
  std::ofstream(folder.path() / "file") << "x";
  const Error error = error_of([&] { sample::save(folder.path() / "file", {1, 2, 1}, 1, 1); });
  EXPECT_EQ(error.code(), ExitCode::failure);
  EXPECT_TRUE(mentions(error, "file")) << error.what();
}

TEST(Checkpoint, LoadingIntoAnotherModelNamesTheTensor) {
  const sample::Folder folder;
  sample::save(folder.path(), {1, 1, 1}, 1, 1);
  auto model = sample::model();
  model[1].shape = {1, 16, 24};
  sample::Part part = sample::part_of(model, {1, 1, 1}, 0, 1);
  Error error =
      error_of([&] { CheckpointReader(folder.path() / "latest", part.owner).read(part.pieces); });
  EXPECT_EQ(error.code(), ExitCode::bad_data);
  EXPECT_TRUE(mentions(error, "pos_embed") && mentions(error, "(1, 16, 24)")) << error.what();
  model = sample::model();
  model[3].name = "blocks.9.norm1.bias";
  part = sample::part_of(model, {1, 1, 1}, 0, 1);
  error =
      error_of([&] { CheckpointReader(folder.path() / "latest", part.owner).read(part.pieces); });
  EXPECT_TRUE(mentions(error, "blocks.9.norm1.bias")) << error.what();
}

// A virtual dataset reads as NaN without an error when its process may open no more files.
TEST(Checkpoint, TooFewFileDescriptorsAreRaisedOrReported) {
  const sample::Folder folder;
  const Mesh mesh{1, 20, 1};
  sample::save(folder.path(), mesh, 1, 1);
  const auto limited = [&](rlim_t soft, rlim_t hard) {
    const rlimit files = {soft, hard};
    setrlimit(RLIMIT_NOFILE, &files);
  };
  EXPECT_TRUE(in_child([&] {
    limited(14, 4096);
    return sample::load_wrong(folder.path() / "latest", {1, 1, 1}, 1, 1) == 0 &&
           verify_checkpoint(folder.path() / "latest").faults.empty();
  }));
  EXPECT_TRUE(in_child([&] {
    limited(14, 14);
    const Error error = error_of([&] {
      sample::load_wrong(folder.path() / "latest", {1, 1, 1}, 1, 1);
    });
    return error.code() == ExitCode::bad_data && mentions(error, "ulimit -n");
  }));
}

}  // namespace
}  // namespace voltapile
