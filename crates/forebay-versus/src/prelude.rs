//! The names that every experiment and peer uses.

pub(crate) use std::fs::File;
pub(crate) use std::os::fd::AsRawFd as _;
pub(crate) use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex, PoisonError};
pub(crate) use std::time::{Duration, Instant};

pub(crate) use anyhow::{Context as _, Result, anyhow, bail, ensure};
pub(crate) use forebay_measure::SplitMix;
pub(crate) use forebay_measure::context::Context;
pub(crate) use forebay_measure::experiment::{Outcome, Parameters, Spec, Way};
pub(crate) use forebay_measure::options::{Opt, Values};
pub(crate) use forebay_report::result::Experiment as Table;
pub(crate) use forebay_report::result::columns::{P50_US, P99_US, column};
pub(crate) use forebay_report::result::targets::{Beside, Ratio, Target, Targets};
pub(crate) use forebay_report::result::view::{Axis, Role};
pub(crate) use serde_json::{Value, json};

pub(crate) use crate::files::{self, Checksum, PAGE_BYTES, PageKind, Piece, page_offset, pieces};
pub(crate) use crate::meter::{
    Meter, all, local_tasks, on_threads, on_tokio, threads, tokio_tasks, while_open,
};
pub(crate) use crate::random::{BLOCK_BYTES, open_direct};
pub(crate) use crate::run::{self, Run, Versus, Work, cores, experiment};
pub(crate) use crate::scan::{BLOCK_LARGE_BYTES, DEPTH_LARGE};
pub(crate) use crate::usage::{self, Usage};
