// The safetensors format: what a good file says, and every way in which a file can be bad.
#include "safetensors.hpp"

#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "resample.hpp"
#include "sample.hpp"

namespace voltapile {
namespace {

namespace fs = std::filesystem;
using safetensors::Layout;
using safetensors::parse_header;

Layout sample_layout() {
  return {.tensors = {{"first", "F32", {2, 3}, 0, 24},
                      {"scalar", "F64", {}, 24, 32},
                      {"empty", "F16", {0, 2}, 32, 32},
                      {"last", "BF16", {1}, 32, 34}},
          .metadata = {{"format", "pt"}, {"odd \"text\"", "\xC3\xA9\n"}}};
}

std::string refusal(const std::string& json, int64_t data_bytes) {
  try {
    parse_header(json, data_bytes, "a.file");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    return error.what();
  }
  return "accepted";
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
std::string length_bytes(uint64_t length) {
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes;
}

TEST(Safetensors, WhatIsWrittenReadsBack) {
  const Layout layout = sample_layout();
  const std::string bytes = safetensors::header_bytes(layout);
  EXPECT_EQ(bytes.size() % 8, 0u);
  EXPECT_EQ(bytes.substr(0, 8), length_bytes(bytes.size() - 8));
  Layout read = parse_header(std::string_view(bytes).substr(8), 34, "a.file");
  EXPECT_EQ(read.metadata, layout.metadata);
  ASSERT_EQ(read.tensors.size(), layout.tensors.size());
  for (const safetensors::Tensor& tensor : layout.tensors)
    EXPECT_NE(std::find(read.tensors.begin(), read.tensors.end(), tensor), read.tensors.end())
        << tensor.name;
}

TEST(Safetensors, BadHeadersAreRefusedWithTheirFault) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(refusal(good, 8), "accepted");
  const auto with = [&](const std::string& old, const std::string& fresh) {
    std::string text = good;
    return text.replace(text.find(old), old.size(), fresh);
  };
  struct Case {
    std::string json, fault;
    int64_t data_bytes = 8;
  };
  const std::string two = R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":)";
  const std::vector<Case> cases = {
      {"", "does not begin with {"},
      {" " + good, "does not begin with {"},
      {"[1]", "does not begin with {"},
      {"{", "no JSON"},
      {good + "x", "no JSON"},
      {"{\"a\xFF\":1}", "no JSON"},
      {"{\"a\":" + std::string(100000, '[') + "}", "nested too deeply"},
      {R"({"a":1})", "not just dtype, shape and data_offsets"},
      {with(R"("dtype":"F32",)", ""), "not just dtype, shape and data_offsets"},
      {with("}}", R"(,"more":1}})"), "not just dtype, shape and data_offsets"},
      {with("\"F32\"", "\"F99\""), "unknown dtype F99"},
      {with("\"F32\"", "4"), "its dtype is no text"},
      {with("[2]", "2"), "its shape is no list"},
      {with("[2]", "[1,1,1,1,1,1,2]"), "its shape is no list"},
      {with("[2]", "[[2]]"), "nested too deeply"},
      {with("[2]", "[-2]"), "no natural number"},
      {with("[2]", "[2.0]"), "no natural number"},
      {with("[2]", "[99999999999999999999]"), "no natural number"},
      {with("[2]", "[9223372036854775807]"), "larger than the 8 bytes"},
      {with("[2]", "[8,8,8,8,8]"), "takes 131072 bytes"},
      {with("[2]", "[3]"), "takes 12 bytes, its data_offsets hold 8"},
      {with("\"F32\"", "\"F16\""), "takes 4 bytes, its data_offsets hold 8"},
      {with("[0,8]", "[0,8,9]"), "no pair"},
      {with("[0,8]", "[-8,0]"), "outside the 8 bytes"},
      {with("[0,8]", "[8,0]"), "outside the 8 bytes"},
      {with("[0,8]", "[8,16]"), "outside the 8 bytes"},
      {good, "last 1 bytes belong to no tensor", 9},
      {with("[0,8]", "[1,9]"), "1 bytes before its data", 9},
      {with("}}", "}" + two + "[4,8]}}"), "overlaps"},
      {with("}}", "}" + two + "[9,13]}}"), "1 bytes before its data", 13},
      {good.substr(0, good.size() - 1) + "," + good.substr(1), "two values for a"},
      {with("\"shape\"", R"("dtype":"F32","shape")"), "two values for dtype"},
      {R"({"__metadata__":[]})", "__metadata__ is no object", 0},
      {R"({"__metadata__":{"a":1}})", "not a text", 0},
  };
  for (const Case& one : cases)
    EXPECT_NE(refusal(one.json, one.data_bytes).find(one.fault), std::string::npos)
        << one.json.substr(0, 200) << "\n"
        << refusal(one.json, one.data_bytes);
}

TEST(Safetensors, NamesInMessagesArePrintable) {
  EXPECT_EQ(safetensors::show_name("blocks.0.x"), "blocks.0.x");
  EXPECT_EQ(safetensors::show_name("a\n\x7F\xC3\xA9"), R"("a\n\u007f\u00e9")");
  EXPECT_EQ(safetensors::show_name("\xFF"), R"("\ufffd")");
  EXPECT_LT(safetensors::show_name(std::string(1000000, 'a')).size(), 200u);
}

TEST(Safetensors, FilesThatLieAboutTheirHeaderAreRefused) {
  const sample::Folder folder;
  const fs::path path = folder.path() / "a.safetensors";
  const auto refused = [&](const std::string& bytes) {
    write_file(path, bytes);
    try {
      const safetensors::Reader reader(path);
    } catch (const Error& error) {
      return error.code() == ExitCode::bad_data ? std::string(error.what()) : "another code";
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused(length_bytes(2) + "{}"), "accepted");
  EXPECT_NE(refused("").find("shorter than 8 bytes"), std::string::npos);
  EXPECT_NE(refused("1234567").find("shorter than 8 bytes"), std::string::npos);
  for (const uint64_t length : {uint64_t{3}, uint64_t{200'000'000}, uint64_t{1} << 63,
                                std::numeric_limits<uint64_t>::max()})
    EXPECT_NE(refused(length_bytes(length) + "{}").find("a header of"), std::string::npos);
  EXPECT_THROW(safetensors::Reader(folder.path()), Error);  // a folder
  EXPECT_THROW(safetensors::Reader(folder.path() / "none"), Error);
}

TEST(Safetensors, EveryFloatingTypeIsRead) {
  const sample::Folder folder;
  const fs::path path = folder.path() / "a.safetensors";
  const double wide[] = {1.5, -2.25};
  const float plain[] = {0.1f, -3e38f};
  const Half half[] = {Half(0.5f), Half(65504.0f)};
  const BFloat16 brain[] = {BFloat16(1.0f), BFloat16(-3e38f)};
  Layout layout{.tensors = {{"F64", "F64", {2}, 0, 16},
                            {"F32", "F32", {2}, 16, 24},
                            {"F16", "F16", {2}, 24, 28},
                            {"BF16", "BF16", {2}, 28, 32}}};
  std::string data(32, '\0');
  std::memcpy(data.data(), wide, 16);
  std::memcpy(data.data() + 16, plain, 8);
  std::memcpy(data.data() + 24, half, 4);
  std::memcpy(data.data() + 28, brain, 4);
  write_file(path, safetensors::header_bytes(layout) + data);
  safetensors::Reader reader(path);
  const float want[4][2] = {{1.5f, -2.25f},
                            {0.1f, -3e38f},
                            {0.5f, 65504.0f},
                            {1.0f, static_cast<float>(BFloat16(-3e38f))}};
  for (size_t i = 0; i < 4; ++i) {
    float got[2] = {};
    reader.read(reader.layout().tensors[i], got);
    EXPECT_EQ(got[0], want[i][0]);
    EXPECT_EQ(got[1], want[i][1]);
  }
}

TEST(Safetensors, ValuesThatAreNotFiniteAreRefused) {
  const sample::Folder folder;
  const fs::path path = folder.path() / "a.safetensors";
  for (const double value : {std::nan(""), HUGE_VAL, 1e300}) {  // the last is not finite in f32
    std::string data(8, '\0');
    std::memcpy(data.data(), &value, 8);
    write_file(path, safetensors::header_bytes({.tensors = {{"a", "F64", {1}, 0, 8}}}) + data);
    safetensors::Reader reader(path);
    float got = 0;
    EXPECT_THROW(reader.read(reader.layout().tensors[0], &got), Error) << value;
  }
}

// Expected values: torch.nn.functional.interpolate(mode="bicubic", antialias=True), PyTorch 2.
TEST(Resample, AgreesWithPyTorch) {
  std::vector<float> picture(12);
  for (size_t i = 0; i < 12; ++i) picture[i] = static_cast<float>(i * i) / 10;
  const auto check = [&](Grid to, const std::vector<float>& want) {
    const std::vector<float> got = resample(picture.data(), {3, 4}, to, 1);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5f) << i;
  };
  check({2, 6}, {0.344371f, 0.498716f, 0.792504f, 1.157726f, 1.691058f, 2.059953f, 4.689054f,
                 5.370778f, 6.49823f, 7.599675f, 8.966671f, 9.862945f});
  check({5, 3},
        {-0.124671f, 0.024599f, 0.503174f, 0.400311f, 0.949352f, 1.827699f, 1.759497f, 3.035919f,
         4.641648f, 5.053011f, 7.056815f, 9.389926f, 7.085174f, 9.488749f, 12.221632f});
}

TEST(Resample, ChannelsDoNotMixAndTheSameSizeIsTheSamePicture) {
  std::vector<float> picture;
  for (int i = 0; i < 20; ++i) {
    picture.push_back(static_cast<float>(i * i % 7));
    picture.push_back(5);
  }
  EXPECT_EQ(resample(picture.data(), {4, 5}, {4, 5}, 2), picture);
  const std::vector<float> larger = resample(picture.data(), {4, 5}, {7, 3}, 2);
  for (size_t i = 1; i < larger.size(); i += 2) EXPECT_NEAR(larger[i], 5, 1e-6f);
}

}  // namespace
}  // namespace voltapile
