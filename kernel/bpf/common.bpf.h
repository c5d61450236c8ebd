/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What a step has on every engine inside the kernel. */
#ifndef FOREBAY_COMMON_BPF_H
#define FOREBAY_COMMON_BPF_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;

#include "../include/forebay_slot.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct bpf_iter_num {
	u64 opaque[1];
} __attribute__((aligned(8)));
#pragma clang attribute pop

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

/* The program's own: looks at a page, which lies at `at` of the file, and returns one of FBW_READ, WAIT, OVER, FAIL. With
 * FBW_READ it has put 1 to 16 positions into `next` and their number into `count`; with FBW_FAIL its reason into `count`. */
static __always_inline u32 fbw_step(const u8 *page, u64 at, u8 *scratch, u64 *next, u32 *count);

#endif
