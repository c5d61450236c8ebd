//! The tests of walks, one module for each subject. Tests of a whole process or machine are separate programs next to this folder.

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
