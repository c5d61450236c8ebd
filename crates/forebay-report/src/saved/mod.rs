//! Work on results that were saved as JSON: `diff`, `assert`, `convert`.

use serde_json::Value;

use crate::failure::Failure;
use crate::result::{Metrics, Report, Row, SCHEMA, Sample};

pub mod assertion;
pub mod convert;
pub mod diff;
mod select;
pub mod waited;

/// The texts of other programs that can be read.
const READABLE: &str =
    "`forebay convert` reads the JSON of forebay, fio, elbencho and IOR, and the text of IOR and mdtest";

/// Returns a row with one sample, of the figures that are known.
fn row<'a>(name: impl Into<String>, figures: impl IntoIterator<Item = (&'a str, Option<f64>)>) -> Row {
    let mut metrics = Metrics::default();
    for (name, value) in figures {
        metrics.set(name, value.unwrap_or(f64::NAN));
    }
    Row::from_samples(name, vec![Sample { repeat: 0, metrics }])
}

/// Reads a result of this program.
///
/// # Errors
/// A sentence that names the file and its fault.
pub fn parse(name: &str, text: &str) -> Result<Report, Failure> {
    let wrong = |what: String| Failure::Usage(format!("{name} {what}"));
    let value: Value = serde_json::from_str(text).map_err(|error| wrong(not_json(&error)))?;
    let (Some(schema), Some(program)) = (value.get("schema"), value.get("forebay").and_then(Value::as_str))
    else {
        return Err(wrong(format!("was not written by forebay ({READABLE})")));
    };
    if !(1..=SCHEMA).any(|readable| schema.as_u64() == Some(u64::from(readable))) {
        return Err(wrong(format!(
            "has version {schema} of the schema, of forebay {program}; this program reads up to version \
             {SCHEMA}: use the one that wrote it, or measure again"
        )));
    }
    if let Some(report) = waited::report(&value) {
        return report
            .map_err(|error| wrong(format!("does not follow the schema of `forebay wait`: {error}")));
    }
    if value.get("experiments").is_none() {
        return Err(wrong("has no experiments: it is the output of another command".to_owned()));
    }
    Report::read(value).map_err(|error| wrong(format!("does not follow the schema: {error}")))
}

/// Returns the fault of a text that is not JSON, to follow its name.
fn not_json(error: &serde_json::Error) -> String {
    if error.is_eof() {
        format!("ends in the middle of its JSON ({error}): it was cut off")
    } else {
        format!("is not JSON: {error} ({READABLE})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    #[test]
    fn a_file_that_is_no_result_is_identified() {
        let whole = Report::new(Environment::default(), Vec::new()).to_json().expect("finite");
        assert!(parse("a.json", &whole).is_ok());
        let other = whole.replace("\"schema\": 2", "\"schema\": 7");
        let wrong = |text: &str| parse("a.json", text).expect_err("refused").to_string();
        assert!(wrong(&other).contains("version 7 of the schema"), "{}", wrong(&other));
        assert!(wrong(&whole[..whole.len() / 2]).contains("was cut off"));
        assert!(wrong("<html>").contains("is not JSON"));
        assert!(wrong("{\"schema\": 1}").contains("not written by forebay"));
        assert!(wrong("{\"schema\": 1, \"forebay\": \"0\"}").contains("another command"));
        let twisted = whole.replace("\"experiments\": []", "\"experiments\": [{\"rows\": 7}]");
        assert!(wrong(&twisted).contains("does not follow the schema"), "{}", wrong(&twisted));
        let absurd = "{\"schema\":1,\"forebay\":\"0\",\"experiments\":[1e999]}";
        assert!(wrong(absurd).contains("is not JSON"), "{}", wrong(absurd));
    }
}
