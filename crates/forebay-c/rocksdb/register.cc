// Makes the file system known to RocksDB as forebay:// when the library is loaded, such as by LD_PRELOAD.
#include <dlfcn.h>
#include <link.h>
#include <rocksdb/utilities/object_registry.h>
#include <rocksdb/version.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "forebay_rocksdb.h"

namespace {

using rocksdb::FileSystem;
using rocksdb::ObjectLibrary;

bool IsRocksdb(const char *path) {
    const char *name = std::strrchr(path, '/');
    return std::strncmp(name == nullptr ? path : name + 1, "librocksdb.so", std::strlen("librocksdb.so")) == 0;
}

int Count(struct dl_phdr_info *object, size_t, void *count) {
    if (IsRocksdb(object->dlpi_name)) ++*static_cast<int *>(count);
    return 0;
}

/// Returns why the RocksDB of this process is not the one that the file system was compiled for, or NULL.
const char *Refusal() {
    Dl_info found;
    auto *const known = &ObjectLibrary::Default;
    if (dladdr(reinterpret_cast<void *>(known), &found) == 0 || !IsRocksdb(found.dli_fname)) {
        return "the program brings a RocksDB of its own; use NewRocksdbFileSystem, compiled with its headers";
    }
    int libraries = 0;
    dl_iterate_phdr(Count, &libraries);
    if (libraries != 1) return "the process has more than one librocksdb.so";
    const std::string built = std::to_string(ROCKSDB_MAJOR) + "." + std::to_string(ROCKSDB_MINOR) + ".";
    const std::string version = rocksdb::GetRocksVersionAsString(true);
    if (version.compare(0, built.size(), built) != 0) return "it was compiled for another version of RocksDB; compile it again";
    return nullptr;
}

FileSystem *Make(const std::string &, std::unique_ptr<FileSystem> *guard, std::string *failure) {
    const rocksdb::Status status = forebay::NewRocksdbFileSystem(nullptr, guard);
    if (!status.ok()) *failure = status.ToString();
    return guard->get();
}

__attribute__((constructor)) void Register() {
    if (const char *refusal = Refusal()) {
        std::fprintf(stderr, "forebay:// is not available: %s\n", refusal);
        return;
    }
    ObjectLibrary::Default()->AddFactory<FileSystem>(
        ObjectLibrary::PatternEntry("forebay", false).AddSeparator("://", false), Make);
}

}  // namespace
