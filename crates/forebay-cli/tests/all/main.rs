//! The tests of the program, one module for each subject. No test needs a separate process: the code under test runs in the
//! program, which they start.

mod amplification;
mod appends;
mod bad_input;
mod calibrate;
mod closed_stderr;
mod cpu;
mod doctor;
mod experiments;
mod fairness;
mod files;
mod hosts;
mod jobs;
mod kv;
mod measure;
mod page;
mod page_size;
mod patterns;
mod refusals;
mod saturate;
mod saved;
mod support;
mod sustain;
mod top;
mod wait;
#[cfg(feature = "wait")]
mod wait_signals;
mod wal;
mod walk;
mod writes;
