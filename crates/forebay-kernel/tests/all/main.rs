//! The tests of walks, one module for each subject. Those that look at a whole process or machine are programs of their own beside
//! this folder.

#[path = "../common/mod.rs"]
mod common;

mod closing;
mod conformance;
mod from_file_to_file;
mod hash_chain;
mod module;
mod other_user;
mod programs;
mod service_user;
mod spinning;
mod tables;
