//! The sequence property as a fuzz target: any bytes are a seed and a sequence, and no sequence may find the core wrong.
//!
//! Under `cargo test` random bytes are tried for 5 seconds, or for `FOREBAY_FUZZ_SECONDS`. With `cargo bolero test` the
//! same target runs under libFuzzer, AFL or honggfuzz.

use std::time::Duration;

use forebay_conformance::sequence;

/// Bytes that one step uses at least, roughly: longer inputs make longer sequences.
const BYTES_PER_STEP: usize = 12;
const STEPS_MAX: usize = 60;
const INPUT_BYTES_MAX: usize = 1024;

/// Returns numbers from the fuzzer's bytes, and zeros, the simplest choice, when they are used up.
fn numbers(input: &[u8]) -> impl FnMut(u64) -> u64 + '_ {
    let mut bytes = input.iter().copied();
    move |n| {
        let mut raw = u64::from(bytes.next().unwrap_or(0));
        let mut span = 256;
        while span < n {
            raw = raw * 256 + u64::from(bytes.next().unwrap_or(0));
            span *= 256;
        }
        // Scaled, not divided: a larger byte is a larger number, so a fuzzer can approach a value.
        ((u128::from(raw) * u128::from(n)) / u128::from(span)) as u64
    }
}

#[test]
fn any_sequence_is_followed() {
    let seconds = std::env::var("FOREBAY_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    bolero::check!().with_test_time(Duration::from_secs(seconds)).with_max_len(INPUT_BYTES_MAX).for_each(
        |input: &[u8]| {
            let (seed, input) = match input {
                [high, low, rest @ ..] => (u64::from(u16::from_be_bytes([*high, *low])), rest),
                _ => (0, input),
            };
            let count = (input.len() / BYTES_PER_STEP).min(STEPS_MAX);
            let steps = sequence::generate(&mut numbers(input), count);
            if let Err(broken) = sequence::simulate(seed, &steps) {
                let lines: Vec<String> = steps.iter().map(|step| format!("    {step}")).collect();
                panic!("world {seed}: {broken}\n{}", lines.join("\n"));
            }
        },
    );
}
