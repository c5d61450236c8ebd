//! Tests of programs: what they start and leave.
#![cfg(target_os = "linux")]

mod demo_cluster;
