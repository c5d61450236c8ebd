//! Tests of programs: what they start and leave.
#![cfg(target_os = "linux")]

mod command_line;
mod demo_cluster;
