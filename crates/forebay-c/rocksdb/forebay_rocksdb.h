/* RocksDB on Forebay: a file system for RocksDB whose files are read and written by libforebay. docs/c.md is the guide. */
#ifndef FOREBAY_ROCKSDB_H
#define FOREBAY_ROCKSDB_H

#include <forebay.h>

#ifdef __cplusplus

#include <rocksdb/file_system.h>

#include <memory>

namespace forebay {

/// Makes a file system with an engine for itself; config: NULL for the default settings. The engine ends with the last of the file
/// system and its open files. In a forked child each call on it fails.
///
/// `rocksdb::NewCompositeEnv(file_system)` is an environment with it.
__attribute__((visibility("default"))) rocksdb::Status NewRocksdbFileSystem(const fb_config *config,
                                                                            std::unique_ptr<rocksdb::FileSystem> *file_system);

}  // namespace forebay

extern "C" {
#endif

/* The same as an environment of <rocksdb/c.h>, which `rocksdb_env_destroy` and `rocksdb::Env::from_raw` of the crate `rocksdb` take.
 * Returns NULL after a failure, whose text `*error` has then (free(3)). */
__attribute__((visibility("default"))) struct rocksdb_env_t *forebay_rocksdb_env(const fb_config *config, char **error);

#ifdef __cplusplus
}
#endif

#endif
