// Runs a fuzz target without libFuzzer, so that any compiler can: first every file of a corpus,
// then seeded mutations of them.
//
// usage: deck_fuzz CORPUS [MUTATIONS [SEED]]
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

class Mutator {
 public:
  Mutator(std::vector<std::string> corpus, uint64_t seed)
      : corpus_(std::move(corpus)), random_(seed) {}

  std::string next() {
    std::string text = any(corpus_);
    for (size_t i = 1 + below(6); i > 0; --i) mutate(text);
    return text;
  }

 private:
  size_t below(size_t count) { return count == 0 ? 0 : random_() % count; }
  const std::string& any(const std::vector<std::string>& from) { return from[below(from.size())]; }

  std::string line_of(const std::string& text) {
    const size_t at = below(text.size() + 1);
    const size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;  // npos + 1 is 0
    return text.substr(begin, text.find('\n', begin) - begin) + "\n";
  }

  void mutate(std::string& text) {
    static const std::vector<std::string> kTokens = {"[",
                                                     "]",
                                                     "[[",
                                                     "]]",
                                                     "{",
                                                     "}",
                                                     "=",
                                                     ".",
                                                     ",",
                                                     "\"",
                                                     "'",
                                                     "\"\"\"",
                                                     "'''",
                                                     "#",
                                                     "\n",
                                                     "\r\n",
                                                     "\\",
                                                     "\\u",
                                                     "&",
                                                     "-",
                                                     "+",
                                                     "_",
                                                     "inf",
                                                     "nan",
                                                     "1e",
                                                     "0x",
                                                     "0b1",
                                                     "99999999999999999999",
                                                     "1e400",
                                                     "-1",
                                                     "0",
                                                     "true",
                                                     "1979-05-27",
                                                     "07:32:00",
                                                     "\"auto\"",
                                                     "\"chunk\"",
                                                     "[model]",
                                                     "a.b.c.d = 1\n",
                                                     std::string(1, '\0'),
                                                     "\xC3\xA9",
                                                     "\xFF",
                                                     "model.dim=",
                                                     "\t",
                                                     "\"\\u00e9\\n\" = 1\n",
                                                     "[\"\\u0001\"]\n",
                                                     "run.steps = 1\n"};
    const size_t at = below(text.size() + 1);
    switch (below(8)) {
      case 0: text.insert(at, any(kTokens)); break;
      case 1: text.erase(at, 1 + below(8)); break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 4: text.insert(at, line_of(any(corpus_))); break;
      case 5: text.insert(text.size(), line_of(text)); break;
      case 6: text.resize(at); break;
      case 7:
        for (size_t i = below(100); i > 0; --i) text.insert(at, any(kTokens).substr(0, 1));
        break;
    }
  }

  std::vector<std::string> corpus_;
  std::mt19937_64 random_;
};

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::cerr << "usage: " << arguments[0] << " CORPUS [MUTATIONS [SEED]]\n";
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1]))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // the same mutations on every machine
  std::vector<std::string> corpus;
  for (const auto& file : files) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    corpus.push_back(text.str());
    run(corpus.back());
  }
  if (corpus.empty()) {
    std::cerr << arguments[1] << ": an empty corpus\n";
    return 2;
  }
  uint64_t mutations = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 0;
  if (std::getenv("VOLTAPILE_FULL") != nullptr) mutations *= 100;
  Mutator mutator(corpus, count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1);
  for (uint64_t i = 0; i < mutations; ++i) run(mutator.next());
  std::cout << corpus.size() << " inputs and " << mutations << " mutations passed\n";
  return 0;
}
