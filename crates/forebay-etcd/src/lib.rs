//! A server for etcd's API, version 3.

// A library neither panics on bad input or failed I/O, nor prints, nor ends the program. Tests may.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::exit
    )
)]

mod accounts;
mod answer;
mod bolt;
mod config;
mod histogram;
mod http;
mod hub;
mod lessor;
mod listen;
mod log_lines;
mod mvcc;
mod node;
mod observer;
mod operation;
pub mod proto;
mod refusal;
mod server;
mod services;
mod snapshot;
mod start_error;
mod tls;
mod types;
mod version;

pub use config::{Config, ConfigError, Invocation, Restore};
pub use log_lines::JsonLines;
pub use node::{EndReason, RestoreReport};
pub use server::{Addresses, Server};
pub use start_error::StartError;
