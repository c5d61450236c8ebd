/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The lookup in the tree of `forebay measure walk`. */
#include "walk.bpf.h"
#include "tree_lookup.step.h"

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	return tree_lookup(page, at, scratch, next, count, settings.page_bytes);
}
