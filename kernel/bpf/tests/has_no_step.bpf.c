/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* For the module: all that a step is attached by, and no step. For the loop a step like others. */
#ifdef FBW_MODULE
#include "../common.bpf.h"

struct module_settings {
	u32 memory_bytes;
	u32 page_bytes;
};
const volatile struct module_settings settings SEC(".rodata.settings");

struct fbw_step;
struct fbw_ops {
	int (*step)(struct fbw_step *);
	u32 session_fd;
};

SEC(".struct_ops.link")
struct fbw_ops fbw_module = {};
#else
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	return FBW_OVER;
}
#endif
