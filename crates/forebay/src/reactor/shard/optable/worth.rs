//! Measures the benefit of the op table: a slot allocated, filled field by field, completed and freed. The alternatives are a boxed
//! allocation for each operation, and clearing the whole slot first.
//!
//! Time: `cargo test --release -p forebay --lib op_table_worth -- --ignored --nocapture`. Instructions: the same test
//! program under `valgrind --tool=callgrind --dump-instr=no`, whose `callgrind_annotate --inclusive=yes` lists the three
//! functions below; divide by the operations that the test prints.

use std::hint::black_box;
use std::time::Instant;

use super::*;

/// Operations in flight, as at a queue depth of 32.
const DEPTH: usize = 32;
const ROUNDS_OF_A_RUN: u64 = 2_000;
const RUNS: usize = 15;

/// Fills a slot as `Shard::stage` does.
#[inline(always)]
fn fill(slot: &mut Slot, n: u64) {
    slot.state = SlotState::Staged;
    slot.kind = OpKind::Read;
    slot.class = Class::DEFAULT;
    slot.durability = Durability::None;
    slot.cancelling = false;
    slot.sampled = false;
    slot.retries = 0;
    slot.file = 1;
    slot.offset = n * 4096;
    slot.len = 4096;
    slot.asked = 4096;
    slot.done = 0;
    slot.buffer.move_from(&mut black_box(OpBuffer::Late));
    slot.continue_with(black_box(Continuation::Batch { batch: 0, piece: 1 }));
}

/// Completes a slot as a completion does.
#[inline(always)]
fn complete(slot: &mut Slot) {
    slot.done = 4096;
    slot.result = Ok(slot.done);
    slot.state = SlotState::Done;
    slot.buffer.take();
    slot.continuation = Continuation::Orphan;
}

#[inline(always)]
fn through_the_table(table: &mut OpTable, rounds: u64, prepare: impl Fn(&mut Slot)) {
    let mut keys = [OpKey { index: 0, generation: 0 }; DEPTH];
    for round in 0..rounds {
        for key in &mut keys {
            let Some(taken) = table.take() else { return };
            *key = black_box(taken);
            let slot = table.slot(taken.index);
            prepare(slot);
            fill(slot, round);
        }
        for key in &keys {
            if let Some(slot) = table.find(*key) {
                complete(slot);
                table.give_back(key.index);
            }
        }
    }
}

#[inline(never)]
fn slots_of_the_table(table: &mut OpTable, rounds: u64) {
    through_the_table(table, rounds, |_| {});
}

/// As `slots_of_the_table`, with the slot's bytes cleared before its fields are set.
#[inline(never)]
fn slots_cleared_whole(table: &mut OpTable, rounds: u64) {
    through_the_table(table, rounds, |slot| {
        let (generation, slot) = (slot.generation, std::ptr::from_mut(slot));
        // SAFETY: a slot that was just allocated holds nothing to drop. After the clearing, every field for which all-zero bytes
        // may be invalid is set, so it is a valid slot again. The compiler may not assume that the clearing is useless.
        unsafe {
            slot.write_bytes(0, 1);
            let slot = black_box(slot);
            (&raw mut (*slot).generation).write(generation);
            (&raw mut (*slot).buffer).write(OpBuffer::None);
            (&raw mut (*slot).continuation).write(Continuation::Orphan);
            (&raw mut (*slot).result).write(Ok(0));
            (&raw mut (*slot).state).write(SlotState::Staged);
            (&raw mut (*slot).kind).write(OpKind::Nop);
            (&raw mut (*slot).durability).write(Durability::None);
        }
    });
}

#[inline(never)]
fn a_box_for_each_operation(rounds: u64) {
    let mut boxes: [Option<Box<Slot>>; DEPTH] = [const { None }; DEPTH];
    for round in 0..rounds {
        for place in &mut boxes {
            let mut slot = Box::new(Slot::free(0, NIL));
            fill(&mut slot, round);
            *place = Some(black_box(slot));
        }
        for place in &mut boxes {
            if let Some(mut slot) = place.take() {
                complete(&mut slot);
                drop(black_box(slot));
            }
        }
    }
}

fn median_ns(mut run: impl FnMut(u64)) -> f64 {
    run(ROUNDS_OF_A_RUN);
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let began = Instant::now();
            run(ROUNDS_OF_A_RUN);
            began.elapsed().as_nanos() as f64 / (ROUNDS_OF_A_RUN as f64 * DEPTH as f64)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

#[test]
#[ignore = "a measurement: run it in release, alone"]
fn op_table_worth() {
    let mut table = OpTable::new();
    let mut second = OpTable::new();
    let ours = median_ns(|rounds| slots_of_the_table(&mut table, rounds));
    let boxed = median_ns(a_box_for_each_operation);
    let cleared = median_ns(|rounds| slots_cleared_whole(&mut second, rounds));
    let operations = ROUNDS_OF_A_RUN * DEPTH as u64 * (RUNS as u64 + 1);
    println!(
        "{} bytes a slot, {DEPTH} in flight, median of {RUNS} runs, {operations} operations each",
        size_of::<Slot>()
    );
    println!("op table           {ours:6.2} ns an operation");
    println!("a box each         {boxed:6.2} ns an operation");
    println!("slots cleared      {cleared:6.2} ns an operation");
    assert!(ours < boxed, "the op table must be worth its code");
}
