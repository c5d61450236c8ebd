/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Writes behind the places that a step has for what is next: the module's verifier must refuse it. */
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	next[FBW_FRAME_BYTES / 8] = at;
	return FBW_OVER;
}
