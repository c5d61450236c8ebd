// Handles of forebay.hpp: a close that is refused leaves them as they are.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include <forebay.hpp>

#define CHECK(condition) check((condition), __LINE__, #condition)

namespace {

void check(bool is_so, int line, const char *condition) {
    if (is_so) return;
    std::fprintf(stderr, "line %d: not so: %s; last failure: %s\n", line, condition, fb_error_text());
    std::exit(1);
}

std::mutex mutex;
std::condition_variable changed;
bool was_called = false;
forebay::Engine engine;
forebay::File file;

extern "C" void close_in_callback(void *path, fb_op *, const fb_outcome *outcome) noexcept {
    CHECK(outcome->code == FB_OK);
    CHECK(file.close() == FB_IN_CALLBACK);
    CHECK(file.open(engine.get(), static_cast<const char *>(path)) == FB_IN_CALLBACK);
    CHECK(engine.close() == FB_IN_CALLBACK);
    CHECK(engine.start() == FB_IN_CALLBACK);
    const std::lock_guard<std::mutex> lock(mutex);
    was_called = true;
    changed.notify_one();
}

}  // namespace

// A program closed a file in the callback of its last read, which is refused, and then in another thread. That returned FB_OK and closed
// nothing: the wrapper had given its handle away with the first call. An engine that was closed with a report without its size ran on.
int main(int count, char **arguments) {
    CHECK(count == 2);
    std::string path = std::string(arguments[1]) + "/data";
    fb_config config{};
    config.size = sizeof config;
    config.shards = 1;
    const char *driver = std::getenv("FOREBAY_TEST_DRIVER");
    if (driver != nullptr && std::strcmp(driver, "threads") == 0) config.driver = FB_DRIVER_THREADS;
    CHECK(engine.start(&config) == FB_OK);
    fb_open open{};
    open.size = sizeof open;
    open.access = FB_CREATE;
    open.mode = FB_BUFFERED;
    CHECK(file.open(engine.get(), path.c_str(), &open) == FB_OK);
    CHECK(file.write("data", 4, 0) == FB_OK);

    char bytes[4];
    const fb_request request = file.request(FB_OP_READ, bytes, sizeof bytes, 0);
    fb_notice notice{};
    notice.size = sizeof notice;
    notice.callback = close_in_callback;
    notice.user = path.data();
    CHECK(fb_submit(&request, 1, &notice, nullptr) == FB_OK);
    {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [] { return was_called; });
    }

    std::uint64_t len = 0;
    CHECK(file.get() != nullptr && file.len(&len) == FB_OK && len == 4);
    CHECK(file.close() == FB_OK && file.get() == nullptr);
    CHECK(file.close() == FB_OK);

    fb_close_report report{};
    CHECK(engine.close(&report) == FB_INVALID_INPUT && engine.get() != nullptr);
    report.size = sizeof report;
    CHECK(engine.close(&report) == FB_OK && engine.get() == nullptr && report.leaked_operations == 0);
    std::puts("ok");
    return 0;
}
