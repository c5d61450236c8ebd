//! The names that every experiment and peer uses.

pub(crate) use anyhow::{Context as _, Result, anyhow, bail, ensure};
pub(crate) use forebay_measure::context::Context;
pub(crate) use forebay_measure::experiment::{Outcome, Parameters, Spec, Way, parameters};
pub(crate) use forebay_measure::job::Job;
pub(crate) use forebay_measure::options::{Opt, Values};
pub(crate) use forebay_report::page::columns::{P50_US, P99_US, column};
pub(crate) use forebay_report::result::Experiment as Table;
pub(crate) use forebay_report::result::targets::{Beside, Ratio, Target, Targets};
pub(crate) use serde::Deserialize;
pub(crate) use serde_json::{Value, json};

pub(crate) use crate::content::{self, Checksum, PAGE_BYTES, Rng};
pub(crate) use crate::memory::{PageKind, Piece, pieces};
pub(crate) use crate::meter::{LocalMeter, Meter, Window, on_threads, on_tokio, while_open};
pub(crate) use crate::random::{BLOCK_BYTES, Reads, open_direct};
pub(crate) use crate::run::{self, Run, Versus, cores, no_row, spec, without_again};
pub(crate) use crate::scan::{BLOCK_LARGE_BYTES, DEPTH_LARGE, Scan};
pub(crate) use crate::usage::Usage;
pub(crate) use crate::{allocations, page_cache};
