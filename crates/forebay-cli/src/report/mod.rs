//! Results for people: a summary for the terminal, one HTML page, sentences computed from the numbers.

mod advice;
mod answers;
pub(crate) mod appends;
mod chart;
mod charts;
pub(crate) mod columns;
pub(crate) mod conditions;
pub(crate) mod cpu;
mod facts;
mod histogram;
pub(crate) mod html;
mod knee;
mod marks;
pub(crate) mod noise;
mod order;
mod place;
pub(crate) mod reads;
pub(crate) mod saturate;
mod sections;
pub(crate) mod summary;
mod svg;
pub(crate) mod verdicts;
mod view;
pub(crate) mod walks;
