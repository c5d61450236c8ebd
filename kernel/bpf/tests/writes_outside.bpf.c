/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Writes before the shared memory: the verifier must refuse it. */
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	*(u64 *)(scratch - 65536 * 64) = at;
	return FBW_OVER;
}
