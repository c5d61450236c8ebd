//! The names that every experiment uses.

pub(crate) use forebay_report::failure::Failure;
pub(crate) use forebay_report::page::noise::{Difference, difference, too_wide};
pub(crate) use forebay_report::result::columns::{self, column};
pub(crate) use forebay_report::result::view::{Axis, Gain, Role};
pub(crate) use forebay_report::result::{CacheState, Condition, Experiment as Table, Metrics, Row, metric};
pub(crate) use forebay_report::units::{bytes, number};
pub(crate) use serde::Deserialize;
pub(crate) use serde_json::{Value, json};

pub(crate) use super::experiment::{
    Experiment, Outcome, PARTLY_WARM, Parameters, Place, Plan, Spec, Start, Turn, Way, cache_of, once,
    parameters, shown, text,
};
pub(crate) use super::gates::Claim;
pub(crate) use super::gauge::{Cost, Gauge};
pub(crate) use super::job::Job;
pub(crate) use super::lanes::{on_threads, on_tokio, shared, with_engine};
pub(crate) use super::latency::Latency;
pub(crate) use super::options::{Opt, Values};
pub(crate) use super::pattern::{PAGE_BYTES, Pattern, SplitMix};
pub(crate) use super::scratch_dir::ScratchDir;
pub(crate) use super::test_file::TestFile;
pub(crate) use crate::context::Context;
