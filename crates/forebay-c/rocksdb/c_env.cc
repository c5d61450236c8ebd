// For programs with RocksDB's functions for C, such as those with the crate `rocksdb`.
#include <rocksdb/c.h>
#include <rocksdb/env.h>

#include <cstring>

#include "forebay_rocksdb.h"

/// As RocksDB's c.cc has it, in all of its versions; `rocksdb_env_destroy` deletes both.
struct rocksdb_env_t {
    rocksdb::Env *rep;
    bool is_default;
};

rocksdb_env_t *forebay_rocksdb_env(const fb_config *config, char **error) {
    std::unique_ptr<rocksdb::FileSystem> files;
    const rocksdb::Status status = forebay::NewRocksdbFileSystem(config, &files);
    if (!status.ok()) {
        *error = strdup(status.ToString().c_str());
        return nullptr;
    }
    return new rocksdb_env_t{rocksdb::NewCompositeEnv(std::move(files)).release(), false};
}
