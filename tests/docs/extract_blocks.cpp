// SPDX-License-Identifier: Apache-2.0
// Makes one C++ source of all code blocks in README.md and docs/, so that a compiler can hold the
// pages against the headers.
//
//   extract_blocks SOURCE_DIR OUTPUT.cpp
//
// How a page is read (docs/structure.md has it for writers):
//   ```cpp               statements; each block sees what the blocks above it in its page declare
//   ```cpp declarations  functions and classes
//   a block with main()  a whole program, which sees nothing of its page
//   <!-- cpp ... -->     declarations that the compiler sees and the reader does not
// Names that a page takes for granted (net, batch, optimizer, ...) are declared in prelude.h.
// Compiler errors name the page and its line.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

enum class Kind { kStatements, kDeclarations, kProgram };

struct Block {
  Kind kind = Kind::kStatements;
  std::string text;
};

struct Page {
  std::string name;
  std::vector<Block> blocks;
};

bool starts_with(const std::string& line, std::string_view start) {
  return line.compare(0, start.size(), start) == 0;
}

// Reads one page; its #include lines go to `includes`.
class PageReader {
 public:
  PageReader(const fs::path& root, const fs::path& page, std::set<std::string>& includes)
      : name_(fs::relative(page, root).generic_string()), input_(page), includes_(includes) {}

  Page read() {
    Page page;
    page.name = name_;
    while (next()) {
      if (line_ == "```cpp" || line_ == "```cpp declarations") {
        const auto kind = line_ == "```cpp" ? Kind::kStatements : Kind::kDeclarations;
        page.blocks.push_back(read_until("```", kind));
      } else if (starts_with(line_, "```cpp")) {
        throw std::runtime_error(where() + ": '" + line_ +
                                 "' is neither ```cpp nor ```cpp declarations");
      } else if (line_ == "<!-- cpp") {
        page.blocks.push_back(read_until("-->", Kind::kDeclarations));
      }
    }
    return page;
  }

 private:
  bool next() {
    ++number_;
    return static_cast<bool>(std::getline(input_, line_));
  }

  std::string where() const { return name_ + ":" + std::to_string(number_); }

  Block read_until(std::string_view end, Kind kind) {
    const auto begin = where();
    Block block{.kind = kind,
                .text = "#line " + std::to_string(number_ + 1) + " \"" + name_ + "\"\n"};
    while (next()) {
      if (line_ == end) return block;
      if (starts_with(line_, "int main(")) block.kind = Kind::kProgram;
      if (starts_with(line_, "#include")) {
        includes_.insert(line_);
        line_.clear();
      }
      block.text += line_ + "\n";
    }
    throw std::runtime_error(begin + ": this block has no end");
  }

  std::string name_;
  std::ifstream input_;
  std::set<std::string>& includes_;
  std::string line_;
  int number_ = 0;
};

void write(const Page& page, size_t number, std::ostream& out) {
  int program = 0;
  int open = 0;
  std::ostringstream statements;
  out << "\nnamespace page_" << number << " {  // " << page.name << "\n";
  for (const auto& block : page.blocks) {
    if (block.kind == Kind::kProgram) {
      out << "namespace program_" << ++program << " {\n" << block.text << "}\n";
    } else if (block.kind == Kind::kDeclarations) {
      out << block.text;
    } else {
      statements << "{\n" << block.text;
      ++open;
    }
  }
  out << "void statements() {\n" << statements.str() << std::string(open, '}') << "\n}\n}\n";
}

std::vector<fs::path> pages_of(const fs::path& root) {
  std::vector<fs::path> pages = {root / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  std::sort(pages.begin() + 1, pages.end());
  return pages;
}

std::string source_of(const fs::path& root) {
  std::set<std::string> includes;
  std::ostringstream body;
  size_t number = 0;
  for (const auto& path : pages_of(root)) {
    const auto page = PageReader(root, path, includes).read();
    if (!page.blocks.empty()) write(page, ++number, body);
  }
  std::ostringstream out;
  out << "// Made of the pages by extract_blocks.\n\n";
  for (const auto& include : includes) out << include << "\n";
  out << "\n#include \"tests/docs/prelude.h\"\n\nnamespace docs {\n" << body.str() << "\n}\n";
  return out.str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: extract_blocks SOURCE_DIR OUTPUT.cpp\n";
    return 2;
  }
  try {
    const auto source = source_of(argv[1]);
    std::ofstream output(argv[2]);
    if (!(output << source).flush())
      throw std::runtime_error(std::string("cannot write ") + argv[2]);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
