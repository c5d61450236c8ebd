/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A lookup in a hash table. A bucket is a chain of pages of 4,096 bytes: 16 bytes of header, then the records. */
#include "walk.bpf.h"

struct chain_page {
	u64 next;   /* position of the chain's next page, 0 behind the last */
	u32 bucket; /* the bucket's number, for a check */
	u32 count;  /* of records */
	struct { u64 key, value; } records[255];
};

/* In the 256 bytes that a walk carries from page to page; table.rs has the same places. */
struct lookup {
	u64 key, bucket, found, value;
};

static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count)
{
	const struct chain_page *chain = (const struct chain_page *)page;
	struct lookup *lookup = (struct lookup *)scratch;
	struct bpf_iter_num each;
	int *i;

	*count = 1; /* the reason of FBW_FAIL, or the number of pages to read */
	if (chain->bucket != lookup->bucket || chain->count > 255)
		return FBW_FAIL;
	bpf_iter_num_new(&each, 0, 255);
	while ((i = bpf_iter_num_next(&each))) {
		u32 n = *i;

		if (n >= 255 || n >= chain->count)
			break;
		if (chain->records[n].key == lookup->key) {
			lookup->value = chain->records[n].value;
			lookup->found = 1;
			break;
		}
	}
	bpf_iter_num_destroy(&each);
	if (lookup->found || !chain->next)
		return FBW_OVER;
	next[0] = chain->next;
	return FBW_READ;
}
