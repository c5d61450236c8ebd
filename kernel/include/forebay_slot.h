/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* A walk in the shared memory, as the module and the programs of the loop see it. Who includes this has types u8, u32 and u64. */
#ifndef FOREBAY_SLOT_H
#define FOREBAY_SLOT_H

#include "forebay_walk.h"

/* User space can write to it at any time. */
struct fbw_shared {
	u32 state;
	u32 hops;
	u32 hops_max;
	u32 coming;
	u32 code;
	u32 place;
	u64 failed_at;
	u64 at[FBW_READS_MAX];
	u32 file;
	u8 gap[FBW_SLOT_SCRATCH - FBW_SLOT_FILE - 4];
	u8 scratch[FBW_SCRATCH_BYTES];
};

#define FBW_PLACE(type, field, at) \
	_Static_assert(__builtin_offsetof(struct type, field) == (at), "the structure is not as the header says")
FBW_PLACE(fbw_shared, state, FBW_SLOT_STATE);
FBW_PLACE(fbw_shared, hops, FBW_SLOT_HOPS);
FBW_PLACE(fbw_shared, hops_max, FBW_SLOT_HOPS_MAX);
FBW_PLACE(fbw_shared, coming, FBW_SLOT_COMING);
FBW_PLACE(fbw_shared, code, FBW_SLOT_CODE);
FBW_PLACE(fbw_shared, place, FBW_SLOT_PLACE);
FBW_PLACE(fbw_shared, failed_at, FBW_SLOT_FAILED_AT);
FBW_PLACE(fbw_shared, at, FBW_SLOT_AT);
FBW_PLACE(fbw_shared, file, FBW_SLOT_FILE);
FBW_PLACE(fbw_shared, scratch, FBW_SLOT_SCRATCH);
_Static_assert(sizeof(struct fbw_shared) == FBW_SLOT_BYTES, "a slot");

#endif
