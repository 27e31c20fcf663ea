#include "voltapile/base/version.hpp"
#include "voltapile/report/report.hpp"

#include "page_assets.hpp"
#include "page_data.hpp"

namespace voltapile {
namespace {

constexpr std::string_view kBefore = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
)";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<') result += "&lt;";
    else if (c == '&') result += "&amp;";
    else result += c;
  }
  return result;
}

// JSON inside of a script element: no text in it may end that element.
std::string embedded(const nlohmann::json& data) {
  std::string result;
  for (const char c : data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
    if (c == '<') result += "\\u003c";
    else result += c;
  }
  return result;
}

}  // namespace

std::string page(const std::vector<Run>& runs) {
  VP_CHECK(runs.size() == 1 || runs.size() == 2, "a page of {} runs", runs.size());
  nlohmann::json data{{"version", kVersion},
                      {"runs", nlohmann::json::array()},
                      {"folders", nlohmann::json::array()}};
  std::string title;
  for (const Run& run : runs) {
    data["runs"].push_back(page_data(run));
    data["folders"].push_back(run.folder.string());
    title += (title.empty() ? "" : " and ") + run.name;
  }
  if (runs.size() == 2) data["comparison"] = comparison_data(runs[0], runs[1]);
  std::string html(kBefore);
  html += format("<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main></main>\n",
                 escaped(title), kPageStyle);
  html += "<div id=\"tip\" role=\"tooltip\"></div>\n";
  html += format("<script type=\"application/json\" id=\"data\">{}</script>\n", embedded(data));
  html += format("<script>\n{}</script>\n</body>\n</html>\n", kPageScript);
  return html;
}

}  // namespace voltapile
