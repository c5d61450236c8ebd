/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Goes where the page says, whatever it is: outside of the file, misaligned, negative. */
#include "../walk.bpf.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	next[0] = *(u64 *)page;
	*count = 1;
	return FBW_READ;
}
