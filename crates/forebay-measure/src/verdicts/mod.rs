//! Tests of the sentences of experiments.

mod devices;
