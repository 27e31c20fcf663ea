// The table's third part: data, and what is written when.
#include <filesystem>

#include "schema.hpp"

namespace voltapile {

namespace {

// The label file that belongs to a file of pictures, by the names that such data sets use.
std::string labels_of(const std::string& pictures) {
  const std::filesystem::path path(pictures);
  std::string file = path.filename().string();
  constexpr std::string_view kPictures = "images-idx3";
  const size_t at = file.find(kPictures);
  if (at == std::string::npos) return "";
  file.replace(at, kPictures.size(), "labels-idx1");
  return (path.parent_path() / file).string();
}

void add_files(Rows<Deck::Data>& data) {
  using D = Deck::Data;
  data.add("train", &D::train, Text{"a file or folder name"},
           {.fallback = literal("\"\""),
            .help = "Training pictures. Needed by every format but synthetic.",
            .on_resume = OnResume::may_change,
            .also = "path train_images root train_dir",
            .naming = KeyNaming::file});
  data.add("train_labels", &D::train_labels, Text{"a file name"},
           {.fallback = derived("data.train with labels-idx1 for images-idx3 in its name",
                                [](Deck& deck, const Given&) {
                                  deck.data.train_labels = labels_of(deck.data.train);
                                }),
            .help = "Their labels; format idx only.",
            .on_resume = OnResume::may_change,
            .naming = KeyNaming::file});
  data.add("test", &D::test, Text{"a file or folder name"},
           {.fallback = literal("\"\""),
            .help = "Test pictures; without them there is no evaluation.",
            .on_resume = OnResume::may_change,
            .also = "val validation val_images test_images val_dir",
            .naming = KeyNaming::file});
  data.add("test_labels", &D::test_labels, Text{"a file name"},
           {.fallback = derived("as train_labels, from data.test",
                                [](Deck& deck, const Given&) {
                                  deck.data.test_labels = labels_of(deck.data.test);
                                }),
            .help = "Their labels; format idx only.",
            .on_resume = OnResume::may_change,
            .also = "val_labels",
            .naming = KeyNaming::file});
}

void add_data(Schema& schema) {
  using D = Deck::Data;
  Rows<D> data(schema, "data", &Deck::data,
               "Pictures and labels. File names are relative to the deck's own folder.");
  data.add(
      "format", &D::format,
      Choice<DataFormat>{{{"synthetic", DataFormat::synthetic},
                          {"idx", DataFormat::idx},
                          {"folder", DataFormat::folder},
                          {"tar", DataFormat::tar},
                          {"hdf5", DataFormat::hdf5}}},
      {.fallback = required(),
       .help = "synthetic: made-up pictures, no files. idx: the format of MNIST, gzipped or "
               "not. folder: a folder for each class. tar: archives of pictures. hdf5: arrays.",
       .also = "type dataset kind"});
  add_files(data);
  data.add("synthetic_train", &D::synthetic_train, Integer{1, int64_t{1} << 40},
           {.fallback = literal("10000"),
            .unit = "pictures",
            .help = "Made-up training pictures (format synthetic)."});
  data.add("synthetic_test", &D::synthetic_test, Integer{0, int64_t{1} << 40},
           {.fallback = literal("1000"),
            .unit = "pictures",
            .help = "Made-up test pictures (format synthetic); 0: no evaluation."});
  data.add("mean", &D::mean, Numbers{"one number for each channel", {-10, 10}},
           {.fallback = derived("0.5 for each channel",
                                [](Deck& deck, const Given&) {
                                  deck.data.mean.assign(static_cast<size_t>(deck.model.channels),
                                                        0.5);
                                }),
            .unit = "of pixel / 255",
            .help = "Subtracted from each pixel."});
  data.add("std", &D::std, Numbers{"one number for each channel", {0, 10, Edge::open}},
           {.fallback = derived("0.5 for each channel",
                                [](Deck& deck, const Given&) {
                                  deck.data.std.assign(static_cast<size_t>(deck.model.channels),
                                                       0.5);
                                }),
            .unit = "of pixel / 255",
            .help = "Each pixel is divided by it.",
            .also = "stddev sigma"});
  data.add("flip", &D::flip, Flag{},
           {.fallback = literal("false"),
            .help = "Mirror half of the training pictures, left to right.",
            .also = "hflip horizontal_flip"});
  data.add("shift", &D::shift, Integer{0, 4096},
           {.fallback = literal("0"),
            .unit = "pixels",
            .help = "Move each training picture by up to so much in both directions; what comes in "
                    "at the edge is black.",
            .also = "translate crop_padding"});
  data.add("workers", &D::workers, WordOr{"auto", Integer{1, 1024}},
           {.fallback = literal("\"auto\""),
            .unit = "threads",
            .help = "Threads of each rank that read and prepare pictures.",
            .on_resume = OnResume::may_change,
            .also = "num_workers"});
  data.add("prefetch_factor", &D::prefetch_factor, Integer{2, 64},
           {.fallback = literal("3"),
            .unit = "batches",
            .help = "Batches held ready ahead of the step that uses them.",
            .on_resume = OnResume::may_change,
            .also = "prefetch"});
}

}  // namespace

void add_data_and_output(Schema& schema) {
  add_data(schema);

  using E = Deck::Eval;
  Rows<E> eval(schema, "eval", &Deck::eval, "Loss and accuracy on the test pictures.");
  eval.add("every_steps", &E::every_steps, Integer{0},
           {.fallback = literal("0"),
            .unit = "steps",
            .help = "Steps between evaluations; 0: only at the end.",
            .on_resume = OnResume::may_change,
            .also = "every interval eval_interval"});
  eval.add("batch", &E::batch, Integer{0, 1 << 20},
           {.fallback = literal("0"),
            .unit = "samples",
            .help = "Samples of a micro-batch in evaluation; 0: batch.micro.",
            .on_resume = OnResume::may_change,
            .also = "micro batch_size"});

  using C = Deck::Checkpoint;
  Rows<C> checkpoint(schema, "checkpoint", &Deck::checkpoint,
                     "Saving, so that a run can stop and continue.");
  checkpoint.add("every_steps", &C::every_steps, Integer{0},
                 {.fallback = literal("0"),
                  .unit = "steps",
                  .help = "Steps between checkpoints; 0: none by steps.",
                  .on_resume = OnResume::may_change,
                  .also = "every interval save_every"});
  checkpoint.add("every_minutes", &C::every_minutes, Number{0, 1e6},
                 {.fallback = literal("0.0"),
                  .unit = "minutes",
                  .help = "Time between the beginnings of checkpoints, by the first rank's clock; "
                          "0: none by time. May stand beside every_steps.",
                  .on_resume = OnResume::may_change,
                  .also = "minutes save_minutes every_seconds every_hours"});
  checkpoint.add("keep_last", &C::keep_last, Integer{0},
                 {.fallback = literal("3"),
                  .unit = "checkpoints",
                  .help = "Older ones are removed; 0 keeps all.",
                  .on_resume = OnResume::may_change,
                  .also = "keep max_to_keep"});
  checkpoint.add("keep_every", &C::keep_every, Integer{0},
                 {.fallback = literal("0"),
                  .unit = "steps",
                  .help = "Checkpoints of multiples of this step stay for ever, whatever keep_last "
                          "says; 0: none.",
                  .on_resume = OnResume::may_change,
                  .also = "keep_period keep_interval"});
  checkpoint.add("at_end", &C::at_end, Flag{},
                 {.fallback = literal("true"),
                  .help = "Save a checkpoint after the last step.",
                  .on_resume = OnResume::may_change});
  checkpoint.add(
      "pool", &C::pool_bytes, Bytes{64 << 10},
      {.fallback = literal("\"1 GB\""),
       .help = "With an optimizer on the host or nvme: memory of each rank into which its "
               "state is copied on its way to the disk. Updates of the next step wait "
               "for what is neither written nor copied yet, so that a save holds "
               "training up for (state - pool) / disk rate at most. No more is taken "
               "than the state needs.",
       .on_resume = OnResume::may_change,
       .also = "buffer staging pool_size"});
  checkpoint.add(
      "on_error", &C::on_error,
      Choice<SaveFault>{{{"stop", SaveFault::stop}, {"continue", SaveFault::go_on}}},
      {.fallback = literal("\"stop\""),
       .help = "When a save fails: end the run, or warn, train on and save again when the next is "
               "due. A last save that fails ends the run in both cases. The checkpoint before "
               "stays whole.",
       .on_resume = OnResume::may_change,
       .also = "on_failure on_fault",
       .words = "fail=stop abort=stop warn=continue ignore=continue"});
  checkpoint.add("fallback", &C::fallback, Flag{},
                 {.fallback = literal("false"),
                  .help = "When the latest checkpoint is damaged: false refuses to train, true "
                          "continues from the newest good one, and says which.",
                  .on_resume = OnResume::may_change,
                  .also = "fall_back"});

  using T = Deck::Trace;
  Rows<T> trace(schema, "trace", &Deck::trace, "A record of every instruction in some steps.");
  trace.add("steps", &T::steps, StepWindow{},
            {.fallback = literal("\"\""),
             .unit = "steps",
             .help = "Steps to record into trace.h5, counted from 1 as in metrics.jsonl, the end "
                     "left out.",
             .on_resume = OnResume::may_change,
             .also = "window"});
  trace.add("gpu_every", &T::gpu_seconds, WordOr{"never", Seconds{}},
            {.fallback = literal("\"1s\""),
             .help = "Time between two looks at each GPU by NVML, over the whole run: use, memory, "
                     "power, clocks, temperature, bytes over PCIe and NVLink, energy; into "
                     "trace.h5, and from there into the report. Nothing on a CPU.",
             .on_resume = OnResume::may_change,
             .also = "nvml gpu_samples sample_every"});
}

}  // namespace voltapile
