// Forebay for C++17: handles that close themselves. Every function is noexcept and returns a code, as those of forebay.h do.
#ifndef FOREBAY_HPP
#define FOREBAY_HPP

#include <cstddef>
#include <cstdint>
#include <utility>

#include "forebay.h"

namespace forebay {

/// Returns whether a close that returned this code has done nothing, so that the handle is closed later. After FB_FORKED it is the
/// parent's, and a child has no use for it.
inline bool is_kept(int code) noexcept { return code == FB_IN_CALLBACK || code == FB_INVALID_INPUT; }

/// An operation that was submitted. The destructor and place() cancel it and wait until it has ended, so that the memory is the program's
/// again. Neither may run in a callback: there the handle would be lost.
class Op {
public:
    Op() noexcept = default;
    Op(Op &&other) noexcept : op_(std::exchange(other.op_, nullptr)) {}
    Op &operator=(Op &&other) noexcept {
        std::swap(op_, other.op_);
        return *this;
    }
    Op(const Op &) = delete;
    Op &operator=(const Op &) = delete;
    ~Op() noexcept { reset(); }

    /// Ends what the handle has, and returns the place for another operation.
    fb_op **place() noexcept {
        reset();
        return &op_;
    }
    int wait(fb_outcome *outcome = nullptr, std::int64_t timeout_ns = -1) noexcept {
        return fb_op_wait(op_, timeout_ns, outcome);
    }
    int part(std::size_t index, fb_outcome *outcome) noexcept { return fb_op_part(op_, index, outcome); }
    int cancel() noexcept { return fb_op_cancel(op_); }
    fb_op *get() const noexcept { return op_; }

private:
    void reset() noexcept {
        if (op_ == nullptr) return;
        fb_op_cancel(op_);
        fb_op_wait(op_, -1, nullptr);
        fb_op_free(op_);
        op_ = nullptr;
    }
    fb_op *op_ = nullptr;
};

/// An open file.
class File {
public:
    File() noexcept = default;
    File(File &&other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
    File &operator=(File &&other) noexcept {
        std::swap(file_, other.file_);
        return *this;
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    ~File() noexcept { close(); }

    /// Opens a file in place of the present one, if that can be closed.
    int open(fb_engine *engine, const char *path, const fb_open *open_spec = nullptr) noexcept {
        const int code = close();
        return file_ == nullptr ? fb_file_open(engine, path, open_spec, &file_) : code;
    }
    int close() noexcept {
        const int code = file_ == nullptr ? FB_OK : fb_file_close(file_);
        if (!is_kept(code)) file_ = nullptr;
        return code;
    }
    int read(void *data, std::size_t len, std::uint64_t offset, std::uint64_t *bytes) noexcept {
        return fb_read(file_, data, len, offset, bytes);
    }
    int write(const void *data, std::size_t len, std::uint64_t offset, std::uint32_t durability = FB_DURABLE_NONE) noexcept {
        return fb_write(file_, data, len, offset, durability);
    }
    int sync(std::uint32_t durability = FB_DURABLE_DATA) noexcept { return fb_sync(file_, durability); }
    int len(std::uint64_t *len) noexcept { return fb_file_len(file_, len); }
    fb_request request(std::uint32_t op, void *data, std::size_t len, std::uint64_t offset) const noexcept {
        return fb_request{sizeof(fb_request), file_, data, len, offset, op, FB_CLASS_DEFAULT, FB_DURABLE_NONE, 0};
    }
    fb_file *get() const noexcept { return file_; }

private:
    fb_file *file_ = nullptr;
};

/// An engine. Its operations and files are destroyed before it, or its close ends them.
class Engine {
public:
    Engine() noexcept = default;
    Engine(Engine &&other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
    Engine &operator=(Engine &&other) noexcept {
        std::swap(engine_, other.engine_);
        return *this;
    }
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;
    ~Engine() noexcept { close(); }

    /// Starts an engine in place of the present one, if that can be closed.
    int start(const fb_config *config = nullptr) noexcept {
        const int code = close();
        return engine_ == nullptr ? fb_engine_start(config, &engine_) : code;
    }
    int close(fb_close_report *report = nullptr) noexcept {
        const int code = engine_ == nullptr ? FB_OK : fb_engine_close(engine_, report);
        if (!is_kept(code)) engine_ = nullptr;
        return code;
    }
    int stats(fb_stats *stats) noexcept { return fb_engine_stats(engine_, stats); }
    fb_engine *get() const noexcept { return engine_; }

private:
    fb_engine *engine_ = nullptr;
};

}  // namespace forebay

#endif
