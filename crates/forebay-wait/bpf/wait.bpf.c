/* How long a tree of threads stands still for I/O: what happens inside the kernel. The reading side is src/session.rs.
 *
 * Everything is added up here, in maps; nothing is sent for each event. scripts/build-bpf compiles this file. */
#include "device.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
