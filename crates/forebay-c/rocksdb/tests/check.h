// What the programs share: checks that name their line, and bytes of files.
#ifndef CHECK_H
#define CHECK_H

#include <rocksdb/file_system.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
            std::exit(1);                                                                   \
        }                                                                                   \
    } while (0)

#define OK(call)                                                                                                        \
    do {                                                                                                                \
        const rocksdb::Status status_of_call = (call);                                                                  \
        if (!status_of_call.ok()) {                                                                                     \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, status_of_call.ToString().c_str());      \
            std::exit(1);                                                                                               \
        }                                                                                                               \
    } while (0)

/// Byte `at` of each file of the tests.
inline char byte_at(uint64_t at) { return static_cast<char>(at * 31 + at / 4096); }

inline std::string bytes_of(uint64_t from, size_t len) {
    std::string bytes(len, 0);
    for (size_t at = 0; at < len; at++) bytes[at] = byte_at(from + at);
    return bytes;
}

inline bool is_range(const rocksdb::Slice &found, uint64_t from, size_t len) { return found == bytes_of(from, len); }

#endif
