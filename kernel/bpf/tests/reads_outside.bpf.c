/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Reads behind the shared memory: the verifier must refuse it. */
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	*(u64 *)scratch = *(u64 *)(page + settings.memory_bytes);
	return FBW_OVER;
}
