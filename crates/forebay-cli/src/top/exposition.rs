//! The exposition of an engine, read into the document that `--json` prints.

use anyhow::Context as _;
use serde_json::{Map, Number, Value, json};

/// Mark by which a file of such documents is recognized.
pub(super) const MARK: &str = "\"forebay_stats\":";

/// Families with a sample for each row of a list: the beginnings of their names, and the lists.
const LISTS: [(&str, &str); 9] = [
    ("shard_", "shards"),
    ("worker_ring_", "worker_rings"),
    ("device_", "devices"),
    ("class_", "classes"),
    ("flow_", "flows"),
    ("file_", "files"),
    ("stall_", "stalls"),
    ("slow_step_", "slow_steps"),
    ("degradation_", "degraded"),
];

/// Families of one object each.
const OBJECTS: [(&str, &str); 2] = [("memory_", "memory"), ("walk_", "walks")];

/// Returns the document of an exposition. Distributions are left out; their percentiles are included.
///
/// # Errors
/// The text is not an exposition of an engine.
pub(super) fn parse(text: &str) -> anyhow::Result<Value> {
    let lists = LISTS.iter().map(|(_, list)| ((*list).to_owned(), json!([])));
    let mut document = Value::Object(lists.collect::<Map<_, _>>());
    let (mut is_distribution, mut next) = (false, 0);
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            (is_distribution, next) = (family.ends_with(" histogram"), 0);
        } else if !is_distribution && !line.starts_with('#') {
            let sample =
                Sample::parse(line).with_context(|| format!("not a sample of OpenMetrics: {line:?}"))?;
            sample.add_to(&mut document, &mut next);
        }
    }
    document["driver"].as_str().context("the reply is not an engine's statistics")?;
    let reasons = rows(&document, "degraded").iter().map(|row| row["reason"].clone());
    document["degraded"] = reasons.collect::<Vec<_>>().into();
    Ok(document)
}

/// Returns the rows of a list of a document.
pub(super) fn rows<'d>(document: &'d Value, list: &str) -> &'d [Value] {
    document[list].as_array().map_or(&[], Vec::as_slice)
}

/// Returns a number of a document or of a row; 0 if an older engine lacks it.
pub(super) fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

/// Returns a text of a document or of a row.
pub(super) fn text<'d>(of: &'d Value, name: &str) -> &'d str {
    of[name].as_str().unwrap_or("")
}

/// Returns a document as a line, its mark first.
pub(super) fn line(document: &Value) -> String {
    format!("{{{MARK}1,{}\n", &document.to_string()[1..])
}

/// A line with a value.
struct Sample<'l> {
    name: &'l str,
    labels: Vec<(&'l str, String)>,
    value: Number,
}

impl<'l> Sample<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
        let mut labels = Vec::new();
        while let Some(label) = rest.strip_prefix(['{', ',']) {
            let (label, quoted) = label.split_once("=\"")?;
            let (mut value, mut letters) = (String::new(), quoted.chars());
            loop {
                match letters.next()? {
                    '"' => break,
                    '\\' => {
                        value.push(letters.next().map(|letter| if letter == 'n' { '\n' } else { letter })?)
                    }
                    letter => value.push(letter),
                }
            }
            labels.push((label, value));
            rest = letters.as_str();
        }
        let value = rest.trim_start_matches('}').split_ascii_whitespace().next()?;
        Some(Self { name, labels, value: value.parse().ok()? })
    }

    /// Adds it to its row, or to its object. `next` is the row in which the family's next sample is looked for first.
    fn add_to(self, document: &mut Value, next: &mut usize) {
        let Some(name) = self.name.strip_prefix("forebay_") else { return };
        let of = |names: &[(&str, &'static str)]| {
            names.iter().find_map(|(begin, list)| Some((*list, name.strip_prefix(begin)?)))
        };
        let (target, name) = match (of(&LISTS), of(&OBJECTS)) {
            (Some((list, name)), _) => (self.row(&mut document[list], next), name),
            (_, Some((object, name))) => (&mut document[object], name),
            _ => (document, name),
        };
        let name = name.strip_suffix("_total").unwrap_or(name);
        match (name, name.strip_suffix("_seconds")) {
            (_, Some(name)) => {
                let ns = self.value.as_f64().unwrap_or_default() * 1e9;
                target[format!("{name}_ns")] = json!(ns.round() as u64);
            }
            ("calibrated", _) => target[name] = json!(self.value.as_u64() == Some(1)),
            ("info" | "engine_info", _) => {}
            _ => target[name] = self.value.into(),
        }
        for (label, text) in self.labels {
            target[label] = text.into();
        }
    }

    /// Returns the row with these labels, which may be a new one.
    fn row<'d>(&self, list: &'d mut Value, next: &mut usize) -> &'d mut Value {
        let Value::Array(rows) = list else { return list };
        let fits = |row: &Value| {
            self.labels.iter().all(|(label, text)| row[*label].as_str().is_none_or(|known| known == text))
        };
        let found = (*next..rows.len()).chain(0..*next).find(|at| fits(&rows[*at]));
        let at = found.unwrap_or_else(|| {
            rows.push(json!({}));
            rows.len() - 1
        });
        *next = at + 1;
        &mut rows[at]
    }
}
