//! The names that every experiment uses.

pub(crate) use forebay_report::failure::Failure;
pub(crate) use forebay_report::page::noise::{Difference, difference, too_wide};
pub(crate) use forebay_report::result::columns::{self, column};
pub(crate) use forebay_report::result::view::{Axis, Gain, Role};
pub(crate) use forebay_report::result::{CacheState, Experiment as Table, Metrics, Row, metric};
pub(crate) use forebay_report::units::{bytes, number};
pub(crate) use serde::Deserialize;
pub(crate) use serde_json::{Value, json};

pub(crate) use crate::context::Context;
pub(crate) use crate::experiment::{
    Experiment, Outcome, PARTLY_WARM, Parameters, Place, Plan, Spec, Start, Turn, Way, cache_of, once,
    parameters, shown, shown_bytes, text,
};
pub(crate) use crate::gates::Claim;
pub(crate) use crate::gauge::{Cost, Gauge};
pub(crate) use crate::job::Job;
pub(crate) use crate::lanes::{on_threads, on_tokio, shared, with_engine};
pub(crate) use crate::latency::Latency;
pub(crate) use crate::options::{Opt, Values};
pub(crate) use crate::pattern::{PAGE_BYTES, Pattern, SplitMix};
pub(crate) use crate::scratch_dir::ScratchDir;
pub(crate) use crate::test_file::TestFile;
