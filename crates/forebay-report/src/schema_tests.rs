//! The JSON Schema of the document: `result.schema.json` in this crate's folder, made from the types themselves. The tests
//! fail where the file is not that of the types, and where a saved document does not follow it.

use std::path::Path;

use serde_json::Value;

use crate::environment::Environment;
use crate::result::{Experiment, Report, Row, metric};

/// Regenerates the file; an entry in the changelog belongs to it, and a new [`SCHEMA`](crate::result::SCHEMA) where a field
/// changed its meaning.
const BLESS: &str = "FOREBAY_BLESS";

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("result.schema.json")
}

fn validator() -> jsonschema::Validator {
    let text = std::fs::read_to_string(path()).expect("the schema is part of the crate");
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    jsonschema::validator_for(&schema).expect("a schema")
}

#[test]
fn the_schema_is_that_of_the_types() {
    let generator = schemars::generate::SchemaSettings::draft2020_12().for_serialize().into_generator();
    let schema = generator.into_root_schema_for::<Report>();
    let text = serde_json::to_string_pretty(&schema).expect("plain") + "\n";
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(path(), &text).expect("the crate's own folder");
    }
    let saved = std::fs::read_to_string(path()).unwrap_or_default();
    assert!(saved == text, "result.schema.json is not that of the types: run this test with {BLESS}=1");
}

#[test]
fn a_document_follows_the_schema_and_a_wrong_one_does_not() {
    let rows = [Row::of_repeats("direct", [[(metric::IOPS, 1.5)]]), Row::skipped("buffered", "refused")];
    let experiment = Experiment::new("random", "how").parameter("depth", 8).with_rows(rows);
    let report = Report::new(Environment::default(), vec![experiment]);
    let whole: Value = serde_json::from_str(&report.to_json().expect("finite")).expect("JSON");
    let validator = validator();
    let faults: Vec<String> = validator.iter_errors(&whole).map(|error| error.to_string()).collect();
    assert!(faults.is_empty(), "{faults:?}");
    for (pointer, wrong) in [
        ("/schema", Value::from("two")),
        ("/experiments/0/rows/0/metrics/iops", Value::from("fast")),
        ("/experiments/0/rows/1/skipped", Value::from(7)),
        ("/environment/kernel", Value::Null),
    ] {
        let mut twisted = whole.clone();
        *twisted.pointer_mut(pointer).expect("it is there") = wrong;
        assert!(!validator.is_valid(&twisted), "{pointer}");
    }
}

/// The saved results of the program's tests are documents of schema 1 or 2, which has the fields of 1.
#[test]
fn saved_documents_follow_the_schema() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../forebay-cli/tests/fixtures");
    let validator = validator();
    for name in ["every-experiment.json", "same-program-1.json"] {
        let text = std::fs::read_to_string(fixtures.join(name)).expect("a fixture");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        let faults: Vec<String> =
            validator.iter_errors(&document).map(|error| error.to_string()).take(3).collect();
        assert!(faults.is_empty(), "{name}: {faults:?}");
    }
}
