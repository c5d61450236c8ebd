// Copies a file: the next part is read while the present part is written. c++ -std=c++17 copy.cpp $(pkg-config --cflags --libs
// forebay) -o copy && ./copy FROM TO
#include <cstdio>
#include <utility>
#include <vector>

#include <forebay.hpp>

namespace {

constexpr std::size_t part_bytes = 1 << 20;

int failed(const char *call, int code) {
    std::fprintf(stderr, "%s: %s: %s\n", call, fb_code_name(code), fb_error_text());
    return 1;
}

int submit_read(const forebay::File &file, std::vector<char> &memory, std::uint64_t offset, forebay::Op &op) {
    const fb_request request = file.request(FB_OP_READ, memory.data(), memory.size(), offset);
    return fb_submit(&request, 1, nullptr, op.place());
}

}  // namespace

int main(int count, char **arguments) {
    if (count != 3) return std::fprintf(stderr, "usage: copy FROM TO\n"), 2;
    // Destroyed from the last to the first: operations, then their memory, files, the engine.
    forebay::Engine engine;
    if (int code = engine.start()) return failed("start", code);
    forebay::File from, to;
    fb_open open{};
    open.size = sizeof open;
    open.mode = FB_BUFFERED;
    if (int code = from.open(engine.get(), arguments[1], &open)) return failed("open", code);
    open.access = FB_CREATE;
    open.truncate = 1;
    if (int code = to.open(engine.get(), arguments[2], &open)) return failed("create", code);

    std::vector<char> now(part_bytes), next(part_bytes);
    forebay::Op reading;
    if (int code = submit_read(from, now, 0, reading)) return failed("submit", code);
    for (std::uint64_t offset = 0;; offset += part_bytes) {
        fb_outcome outcome{};
        outcome.size = sizeof outcome;
        if (int code = reading.wait(&outcome)) return failed("read", code);
        if (outcome.bytes == 0) break;
        if (int code = submit_read(from, next, offset + part_bytes, reading)) return failed("submit", code);
        if (int code = to.write(now.data(), outcome.bytes, offset)) return failed("write", code);
        std::swap(now, next);
    }
    if (int code = to.sync()) return failed("sync", code);
    return 0;
}
