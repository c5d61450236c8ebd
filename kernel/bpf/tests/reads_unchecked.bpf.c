/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Reads at a place that the page names, unchecked: the verifier must refuse it. */
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	*(u64 *)scratch = *(u64 *)(page + *(u32 *)page);
	return FBW_OVER;
}
