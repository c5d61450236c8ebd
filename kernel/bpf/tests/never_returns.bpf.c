/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A step that may never end, as the page wills: the verifier must refuse it. */
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	while (*(volatile const u64 *)page != at)
		;
	return FBW_OVER;
}
