// Every bad deck gets all its faults at once, each with its place, what is allowed and the nearest
// right name. The messages are compared in full.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "voltapile/base/error.hpp"
#include "voltapile/deck/parse.hpp"

namespace voltapile {

namespace {

const std::vector<std::string> kGood = {
    "[run]",                   // 1
    "steps = 100",             // 2
    "[model]",                 // 3
    "image = 32",              // 4
    "patch = 4",               // 5
    "dim = 64",                // 6
    "depth = 4",               // 7
    "heads = 4",               // 8
    "classes = 10",            // 9
    "[batch]",                 // 10
    "global = 32",             // 11
    "[data]",                  // 12
    "format = \"synthetic\"",  // 13
};

// The good deck with one line replaced, or with lines after its end (line 14).
std::string deck_with(size_t line, const std::string& text) {
  std::string result;
  for (size_t i = 0; i < kGood.size(); ++i) result += (i + 1 == line ? text : kGood[i]) + "\n";
  return line > kGood.size() ? result + text + "\n" : result;
}

std::string message_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_deck(text, "deck", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input);
    return error.what();
  }
  return "no error";
}

struct Case {
  size_t line;
  std::string text;
  std::string message;  // without the file's name
};

void expect_all(const std::vector<Case>& cases) {
  for (const Case& each : cases)
    EXPECT_EQ(message_of(deck_with(each.line, each.text)), "deck:" + each.message)
        << "line " << each.line << ": " << each.text;
}

}  // namespace

TEST(BadDeck, TheDeckThatTheCasesBreakIsGood) {
  EXPECT_EQ(message_of(deck_with(0, "")), "no error");
}

TEST(BadDeck, NearMissOfAKeyGetsTheRightKey) {
  expect_all({
      {2, "step = 100", "2:1: run.step = 100: no such key; did you mean run.steps?"},
      {6, "dimm = 64", "6:1: model.dimm = 64: no such key; did you mean model.dim?"},
      {6, "Dim = 64", "6:1: model.Dim = 64: no such key; did you mean model.dim?"},
      {7, "  detph = 4", "7:3: model.detph = 4: no such key; did you mean model.depth?"},
      {9, "classs = 10", "9:1: model.classs = 10: no such key; did you mean model.classes?"},
      {14, "prefetchfactor = 3",
       "14:1: data.prefetchfactor = 3: no such key; did you mean data.prefetch_factor?"},
      {14, "[checkpoint]\nkeep-last = 3",
       "15:1: checkpoint.keep-last = 3: no such key; did you mean checkpoint.keep_last?"},
      {14, "[optimizer]\nweight_decya = 0.1",
       "15:1: optimizer.weight_decya = 0.1: no such key; did you mean optimizer.weight_decay?"},
      {14, "[optimizer]\nmin = 0.1",
       "15:1: optimizer.min = 0.1: no such key; did you mean optimizer.min_lr?"},
  });
}

TEST(BadDeck, NameFromAnotherProgramGetsOurs) {
  expect_all({
      {6, "hidden_size = 64", "6:1: model.hidden_size = 64: no such key; did you mean model.dim?"},
      {8, "num_heads = 4", "8:1: model.num_heads = 4: no such key; did you mean model.heads?"},
      {11, "batch_size = 32",
       "11:1: batch.batch_size = 32: no such key; did you mean batch.global?"},
      {14, "[parallel]\ntp = 2",
       "15:1: parallel.tp = 2: no such key; did you mean parallel.tensor?"},
      {14, "[optimizer]\nlearning_rate = 1e-3",
       "15:1: optimizer.learning_rate = 0.001: no such key; did you mean optimizer.lr?"},
      {14, "[optimizer]\nwarmup = 10",
       "15:1: optimizer.warmup = 10: no such key; did you mean optimizer.warmup_steps?"},
  });
}

TEST(BadDeck, KeyInTheWrongSectionGetsItsOwn) {
  expect_all({
      {14, "lr = 1e-3", "14:1: data.lr = 0.001: no such key; did you mean optimizer.lr?"},
      {14, "seed = 3", "14:1: data.seed = 3: no such key; did you mean run.seed?"},
      {14, "every_steps = 3",
       "14:1: data.every_steps = 3: no such key; did you mean eval.every_steps or "
       "checkpoint.every_steps?"},
      {1, "depth = 3\n[run]", "1:1: depth = 3: stands in no section; did you mean model.depth?"},
      {14, "[loss]\nxyzzyx = 3", "15:1: loss.xyzzyx = 3: no such key; [loss] has label_smoothing"},
  });
}

TEST(BadDeck, UnknownSectionGetsTheNearest) {
  expect_all({
      {14, "[optimiser]\nlr = 1e-3",
       "14:2: [optimiser]: no such section; did you mean [optimizer]?"},
      {14, "[ Model2 ]", "14:3: [Model2]: no such section; did you mean [model]?"},
      {14, "[parralel]\npipeline = 2\ndata = 2",
       "14:2: [parralel]: no such section; did you mean [parallel]?"},
      {14, "[zzz]",
       "14:2: [zzz]: no such section; the sections are run, model, loss, parallel, batch, "
       "precision, optimizer, memory, data, eval, checkpoint, trace"},
      {14, "[[eval]]\nbatch = 3",
       "14:3: eval = [{a table}]: a section; write [eval] and its keys below it"},
      {1, "trace = 5\n[run]", "1:1: trace = 5: a section; write [trace] and its keys below it"},
      {14, "[model.extra]\na = 1",
       "14:8: model.extra = {a table}: no such key; [model] has image, "
       "channels, patch, dim, depth, heads, mlp, classes, pool, position, qkv_bias, layer_scale, "
       "qk_norm, drop_path, initial_std, init"},
  });
}

// One slip, one fault: the keys below the header are not called missing as well.
TEST(BadDeck, KeysOfAMisspeltSectionAreNotMissing) {
  expect_all({{3, "[modle]", "3:2: [modle]: no such section; did you mean [model]?"}});
}

TEST(BadDeck, WrongTypeSaysWhatIsAllowed) {
  expect_all({
      {2, "steps = \"100\"", "2:9: run.steps = \"100\": must be an integer of at least 1"},
      {6, "dim = 64.0", "6:7: model.dim = 64.0: must be an integer from 1 to 1048576"},
      {6, "dim = true", "6:7: model.dim = true: must be an integer from 1 to 1048576"},
      {6, "dim = [64]", "6:7: model.dim = [64]: must be an integer from 1 to 1048576"},
      {6, "dim = 1979-05-27",
       "6:7: model.dim = a date or time: must be an integer from 1 to 1048576"},
      {13, "format = 3",
       "13:10: data.format = 3: must be \"synthetic\", \"idx\", \"folder\", \"tar\" or \"hdf5\""},
      {14, "flip = 1", "14:8: data.flip = 1: must be true or false"},
      {14, "flip = \"yes\"", "14:8: data.flip = \"yes\": must be true or false"},
      {14, "train = 7", "14:9: data.train = 7: must be a file or folder name in quotes"},
      {14, "[optimizer]\nlr = \"small\"",
       "15:6: optimizer.lr = \"small\": must be a number from 0 to 1000"},
      {14, "[optimizer]\nbetas = 0.9",
       "15:9: optimizer.betas = 0.9: must be a list of 2 numbers, each a number from 0 up to, but "
       "not including, 1"},
      {14, "[parallel]\nsequence = 1",
       "15:12: parallel.sequence = 1: must be true, false or \"auto\""},
      {14, "[run.walltime]\nhours = 3",
       "14:1: run.walltime = {a table}: must be a time such as \"90s\", \"30m\" or \"71h30m\", up "
       "to "
       "\"366d\""},
      {4, "image = [32, 32, 3]",
       "4:9: model.image = [32, 32, 3]: must be an integer from 1 to 65536, or two as [height, "
       "width]"},
      {4, "image = [32, 32.0]",
       "4:9: model.image = [32, 32.0]: must be an integer from 1 to 65536, or two as [height, "
       "width]"},
  });
}

TEST(BadDeck, OutOfRangeSaysTheRange) {
  expect_all({
      {2, "steps = 0", "2:9: run.steps = 0: must be an integer of at least 1"},
      {2, "epochs = 0", "2:10: run.epochs = 0: must be a number above 0, to 1000000"},
      {2, "epochs = nan", "2:10: run.epochs = nan: must be a number above 0, to 1000000"},
      {6, "dim = -4", "6:7: model.dim = -4: must be an integer from 1 to 1048576"},
      {6, "dim = 9223372036854775807",
       "6:7: model.dim = 9223372036854775807: must be an integer from 1 to 1048576"},
      {14, "[run]\nseed = -1", "14:1: `[run]`: given twice; keep one"},
      {14, "[model]\ndrop_path = 1.0", "14:1: `[model]`: given twice; keep one"},
      {14, "[loss]\nlabel_smoothing = 1",
       "15:19: loss.label_smoothing = 1: must be a number from 0 up to, but not including, 1"},
      {14, "[optimizer]\nbetas = [0.9, 1.0]",
       "15:9: optimizer.betas = [0.9, 1.0]: must be a list of 2 numbers, each a number from 0 up "
       "to, "
       "but not including, 1"},
      {14, "[optimizer]\nbetas = [0.9, 0.99, 0.999]",
       "15:9: optimizer.betas = [0.9, 0.99, 0.999]: must be a list of 2 numbers, each a number "
       "from "
       "0 up to, but not including, 1"},
      {14, "[optimizer]\nlr = inf", "15:6: optimizer.lr = inf: must be a number from 0 to 1000"},
      {14, "[optimizer]\nzero = 3", "15:8: optimizer.zero = 3: must be an integer from 0 to 1"},
      {14, "workers = 0", "14:11: data.workers = 0: must be \"auto\" or an integer from 1 to 1024"},
      {14, "prefetch_factor = 1",
       "14:19: data.prefetch_factor = 1: must be an integer from 2 to 64"},
      {14, "std = [0.1, 0.0, 0.1]",
       "14:7: data.std = [0.1, 0.0, 0.1]: must be a list of one number for each channel, each a "
       "number above 0, to 10"},
  });
}

TEST(BadDeck, NearMissOfAWordGetsTheRightWord) {
  expect_all({
      {13, "format = \"syntetic\"",
       "13:10: data.format = \"syntetic\": must be \"synthetic\", \"idx\", \"folder\", \"tar\" or "
       "\"hdf5\"; did you mean \"synthetic\"?"},
      {14, "[precision]\ntype = \"fp16\"",
       "15:8: precision.type = \"fp16\": must be \"f32\", \"bf16\" or \"f16\"; did you mean "
       "\"f16\"?"},
      {14, "[precision]\nloss_scale = \"dynamc\"",
       "15:14: precision.loss_scale = \"dynamc\": must be \"dynamic\" or a number from "
       "5.960464477539063e-08 to 1099511627776; did you mean \"dynamic\"?"},
      {14, "[parallel]\nschedule = \"1F1B\"",
       "15:12: parallel.schedule = \"1F1B\": must be \"gpipe\", \"1f1b\", \"interleaved\", "
       "\"breadth_first\", \"zero_bubble_h1\" or \"file\"; did you mean \"1f1b\"?"},
      {14, "[parallel]\nschedule = \"zero_bubble\"",
       "15:12: parallel.schedule = \"zero_bubble\": must be \"gpipe\", \"1f1b\", \"interleaved\", "
       "\"breadth_first\", \"zero_bubble_h1\" or \"file\"; did you mean \"zero_bubble_h1\"?"},
      {14, "[memory]\ncheckpoint_every = \"chunks\"",
       "15:20: memory.checkpoint_every = \"chunks\": must be \"chunk\" or an integer from 1 to "
       "10000; did you mean \"chunk\"?"},
      {14, "[memory]\noptimizer = \"hots\"",
       "15:13: memory.optimizer = \"hots\": must be \"device\", \"host\" or \"nvme\"; did you mean "
       "\"host\"?"},
      {14, "workers = \"Auto\"",
       "14:11: data.workers = \"Auto\": must be \"auto\" or an integer from 1 to 1024; did you "
       "mean "
       "\"auto\"?"},
  });
}

TEST(BadDeck, SizesTimesAndNamesAreChecked) {
  expect_all({
      {14, "[memory]\ndevice_limit = \"32 XB\"",
       "15:16: memory.device_limit = \"32 XB\": must be a size such as \"32 GB\" (1e9) or \"32 "
       "GiB\" "
       "(2^30)"},
      {14, "[memory]\nhost_limit = \"0 GB\"",
       "15:14: memory.host_limit = \"0 GB\": must be a size such as \"32 GB\" (1e9) or \"32 GiB\" "
       "(2^30)"},
      {2, "steps = 1\nwalltime = \"30\"",
       "3:12: run.walltime = \"30\": must be a time such as \"90s\", \"30m\" or \"71h30m\", up to "
       "\"366d\""},
      {2, "steps = 1\nwalltime = 30",
       "3:12: run.walltime = 30: must be a time such as \"90s\", \"30m\" or \"71h30m\", up to "
       "\"366d\""},
      {2, "steps = 1\nname = \"a/b\"",
       "3:8: run.name = \"a/b\": must be a folder name in quotes, without \"/\", not starting with "
       "\".\""},
      {2, "steps = 1\nname = \"..\"",
       "3:8: run.name = \"..\": must be a folder name in quotes, without \"/\", not starting with "
       "\".\""},
      {2, "steps = 1\ndir = \"a\\u0000b\"",
       "3:7: run.dir = \"a\\u0000b\": must be a folder in quotes"},
      {14, "[trace]\nsteps = \"5:5\"",
       "15:9: trace.steps = \"5:5\": must be \"first:end\" with first < end, for example "
       "\"100:105\", or \"\" for none"},
      {14, "[trace]\nsteps = \"5\"",
       "15:9: trace.steps = \"5\": must be \"first:end\" with first < end, for example "
       "\"100:105\", "
       "or \"\" for none"},
  });
}

TEST(BadDeck, MissingRequiredKeyIsReportedAtItsSection) {
  expect_all({
      {6, "", "3:2: model.dim: required; an integer from 1 to 1048576"},
      {11, "", "10:2: batch.global: required; an integer from 1 to 16777216"},
      {2, "", "1:2: run.steps: required: give run.steps or run.epochs"},
      {13, "",
       "12:2: data.format: required; \"synthetic\", \"idx\", \"folder\", \"tar\" or \"hdf5\""},
  });
}

TEST(BadDeck, RulesBetweenTwoKeys) {
  expect_all({
      {2, "steps = 5\nepochs = 2", "3:10: run.epochs = 2: give run.steps or run.epochs, not both"},
      {8, "heads = 5", "8:9: model.heads = 5: a divisor of model.dim = 64, for example 4"},
      {5, "patch = 5",
       "5:9: model.patch = 5: height 5 must divide the image's height 32; for example 4"},
      {5, "patch = [4, 7]",
       "5:9: model.patch = [4, 7]: width 7 must divide the image's width 32; for example 8"},
      {11, "global = 32\nmicro = 64", "12:9: batch.micro = 64: at most batch.global = 32"},
      {14, "mean = [0.5]", "14:8: data.mean = [0.5]: one number for each of model.channels = 3"},
      {4, "channels = 1\nimage = 32\n[data]\nstd = [0.5, 0.5]\nformat = \"synthetic\"\n[model]",
       "9:1: `[model]`: given twice; keep one"},
      {13, "format = \"idx\"",
       "13:10: data.train: this format needs the training pictures' file or folder"},
      {13, "format = \"idx\"\ntrain = \"a.gz\"",
       "14:9: data.train_labels: give the labels' file: data.train has no \"images-idx3\" in its "
       "name to replace"},
      {14, "[parallel]\nschedule = \"gpipe\"\nchunks = 2",
       "16:10: parallel.chunks = 2: schedule \"gpipe\" takes 1 chunk a rank; for more use "
       "\"interleaved\" or \"breadth_first\""},
      {14, "[parallel]\nschedule = \"file\"",
       "15:12: parallel.schedule = \"file\": \"file\" needs parallel.schedule_file, the file that "
       "holds the schedule"},
      {14, "[parallel]\nschedule = \"gpipe\"\nschedule_file = \"x\"",
       "16:17: parallel.schedule_file = \"x\": leave it out, or set parallel.schedule = \"file\" "
       "instead of \"gpipe\""},
      {14, "[precision]\ntype = \"bf16\"\nloss_scale = \"dynamic\"",
       "16:14: precision.loss_scale = \"dynamic\": \"dynamic\" is for type \"f16\"; leave it out, "
       "or give a number such as 1"},
      {14, "[parallel]\ntransport = \"nccl\"",
       "15:13: parallel.transport = \"nccl\": \"nccl\" is for GPUs, and run.device is \"cpu\"; "
       "leave it out, or set \"auto\""},
      {14, "[optimizer]\nmin_lr = 1.0\nlr = 0.1",
       "15:10: optimizer.min_lr = 1.0: at most optimizer.lr = 0.1"},
      {6, "dim = 66\nposition = \"sine2d\"\nqk_norm = true",
       "7:12: model.position = \"sine2d\": \"sine2d\" needs model.dim = 66 to be a multiple of 4\n"
       "deck:10:9: model.heads = 4: a divisor of model.dim = 66, for example 3"},
  });
}

TEST(BadDeck, MalformedTextKeepsItsPlace) {
  expect_all({
      {2, "steps 100", "2:7: `steps 100`: not valid TOML: key-value pair: expected '=', saw '1'"},
      {2, "steps =", "2:8: `steps =`: not valid TOML: key-value pair: expected value, saw '\\n'"},
      {2, "steps = 0100",
       "2:13: `steps = 0100`: not valid TOML: decimal integer: leading zeroes are prohibited"},
      {13, "format = synthetic",
       "13:10: `format = synthetic`: not valid TOML: value: could not determine value type; text "
       "needs quotes: format = \"synthetic\""},
      {13, "format =\tidx   # MNIST's",
       "13:11: `format = idx   # MNIST's`: not valid TOML: floating-point: expected 'inf', saw "
       "'id'; "
       "text needs quotes: format = \"idx\""},
      {13, "format = \"synthetic",
       "13:20: `format = \"synthetic`: not valid TOML: string: unescaped control characters other "
       "than TAB (U+0009) are explicitly prohibited; is a quote missing?"},
      {12, "[data", "12:6: `[data`: not valid TOML: table header: expected ']', saw '\\n'"},
      {14, "[&", "14:1: `[&`: not valid TOML: brackets, quotes or an operator out of place"},
      {14, "mean = [0.5, 0.5\nflip = true",
       "15:1: `flip = true`: not valid TOML: array: expected comma or closing ']', saw 'f'; is a "
       "bracket or quote above it not closed?"},
      {14, "\tflip =\tyes",
       "14:9: `flip = yes`: not valid TOML: value: could not determine value type; text needs "
       "quotes: flip = \"yes\""},
      {14, "\"flip\\u00e9\" = 1",
       "14:1: data.flip\\xC3\\xA9 = 1: no such key; did you mean data.flip?"},
      {14, "flip = true\nflip = false", "15:8: `flip = false`: given twice; keep one"},
      {14, "# caf\xC3\xA9",
       "14:6: byte 0xC3: a deck is plain ASCII text, comments too; write other letters in strings "
       "as \\u00E9"},
      {14, "flip = 3 # caf\xC3\xA9",
       "14:8: data.flip = 3: must be true or false\n"
       "deck:14:15: byte 0xC3: a deck is plain ASCII text, comments too; write other letters in "
       "strings as \\u00E9"},
      {14, std::string("a\0b", 3),
       "14:2: byte 0x00: a deck is plain ASCII text, comments too; write other letters in strings "
       "as \\u00E9"},
      {14, "flip = true\rshift = 1",
       "14:12: byte 0x0D: a deck is plain ASCII text, comments too; write other letters in strings "
       "as \\u00E9"},
      {14, "# " + std::string(5000, 'x'), "14:4097: a line may have at most 4096 characters"},
  });
}

TEST(BadDeck, OverridesNameTheCommandLine) {
  const std::string good = deck_with(0, "");
  const auto with = [&](const std::string& text) { return message_of(good, {text}); };
  EXPECT_EQ(with("model.dim=abc"),
            "--set: model.dim = \"abc\": must be an integer from 1 to 1048576");
  EXPECT_EQ(with("model.dmi=3"), "--set: model.dmi = 3: no such key; did you mean model.dim?");
  EXPECT_EQ(with("modle.dim=3"), "--set: modle.dim = 3: no such section; did you mean [model]?");
  EXPECT_EQ(with("model.heads=5"),
            "--set: model.heads = 5: a divisor of model.dim = 64, for example 4");
  EXPECT_EQ(with("model.dim=62"),
            "deck:8:9: model.heads = 4: a divisor of model.dim = 62, for example 2");
  EXPECT_EQ(with("parallel.schedule=1f1bb"),
            "--set: parallel.schedule = \"1f1bb\": must be \"gpipe\", \"1f1b\", \"interleaved\", "
            "\"breadth_first\", \"zero_bubble_h1\" or \"file\"; did you mean \"1f1b\"?");
  for (const std::string text : {"dim=3", "model.dim", "", "=", ".dim=3", "model.=3"})
    EXPECT_EQ(with(text), "--set: \"" + text +
                              "\": write section.key=value, for example --set "
                              "run.steps=100");
  EXPECT_EQ(with("run.name=a\nb"), "--set: run.name: write plain ASCII text on one line");
}

TEST(BadDeck, AllFaultsComeAtOnceInTheFilesOrder) {
  const std::string text =
      "dim = 3\n"
      "[run]\nsteps = -1\ndevice = \"gpu\"\n"
      "[modle]\n"
      "[model]\nimage = 28\npatch = 4\ndim = 65\nheads = four\nclasses = 10\ndepth = 2\n"
      "[batch]\nglobal = 32\nglobal = 33\nmicro = 64\n";
  EXPECT_EQ(
      message_of(text, {"optimizer.clip=-1"}),
      "deck:1:1: dim = 3: stands in no section; did you mean model.dim?\n"
      "deck:1:1: data.format: required; \"synthetic\", \"idx\", \"folder\", \"tar\" or \"hdf5\"\n"
      "deck:3:9: run.steps = -1: must be an integer of at least 1\n"
      "deck:4:10: run.device = \"gpu\": must be \"cpu\" or \"cuda\"; did you mean \"cuda\"?\n"
      "deck:5:2: [modle]: no such section; did you mean [model]?\n"
      "deck:10:10: `heads = four`: not valid TOML: boolean: expected 'false', saw 'fo'; text needs "
      "quotes: heads = \"four\"\n"
      "deck:15:10: `global = 33`: given twice; keep one\n"
      "deck:16:9: batch.micro = 64: at most batch.global = 32\n"
      "--set: optimizer.clip = -1: must be a number from 0 to 1000000000");
}

}  // namespace voltapile
