//! A parser of text expositions, after the grammar of OpenMetrics 1.0 and without a line of their writer.

use std::collections::{BTreeMap, BTreeSet};

/// A family of figures.
#[derive(Debug, Default)]
pub struct Family {
    /// Its name, in OpenMetrics without the suffix of its samples.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Its samples, in their order.
    pub samples: Vec<Sample>,
    unit: Option<String>,
    help: Option<String>,
}

/// A sample of a family.
#[derive(Debug)]
pub struct Sample {
    /// Its whole name.
    pub name: String,
    /// Its labels, unescaped.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

impl Family {
    /// Returns the value of the sample that has at least these labels.
    ///
    /// # Panics
    /// If the family has no such value.
    pub fn value(&self, labels: &[(&str, &str)]) -> f64 {
        let fits = |sample: &&Sample| {
            labels.iter().all(|(name, value)| sample.labels.get(*name).is_some_and(|known| known == value))
        };
        self.samples.iter().find(fits).unwrap_or_else(|| panic!("no {labels:?} in {self:?}")).value
    }
}

/// Parses OpenMetrics 1.0.
///
/// # Errors
/// The first rule that is broken, with its line.
pub fn open_metrics(text: &str) -> Result<Vec<Family>, String> {
    parse(text.strip_suffix("# EOF\n").ok_or("no # EOF at the end")?, true)
}

/// Parses the text format 0.0.4 of Prometheus, in the order of descriptors that OpenMetrics wants.
///
/// # Errors
/// The first rule that is broken, with its line.
pub fn prometheus(text: &str) -> Result<Vec<Family>, String> {
    parse(text, false)
}

/// Returns the family with this name.
///
/// # Panics
/// If the list has no such family.
pub fn family<'f>(families: &'f [Family], name: &str) -> &'f Family {
    families.iter().find(|family| family.name == name).unwrap_or_else(|| panic!("no family {name}"))
}

fn parse(text: &str, is_open_metrics: bool) -> Result<Vec<Family>, String> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    let (mut families, mut names, mut seen) = (Vec::<Family>::new(), BTreeSet::new(), BTreeSet::new());
    for line in text.split_terminator('\n') {
        let broken = |rule: &str| format!("{rule}: {line:?}");
        if let Some(descriptor) = line.strip_prefix("# ") {
            let mut words = descriptor.splitn(3, ' ');
            let [word, name, rest] =
                [words.next(), words.next(), words.next()].map(Option::unwrap_or_default);
            if word == "TYPE" {
                let kinds: &[&str] = &["counter", "gauge", "histogram", "info"];
                if !is_name(name, true) || !kinds[..3 + usize::from(is_open_metrics)].contains(&rest) {
                    return Err(broken("a type"));
                }
                if !names.insert(name.to_owned()) {
                    return Err(broken("a family that was there"));
                }
                families.push(Family { name: name.to_owned(), kind: rest.to_owned(), ..Family::default() });
                continue;
            }
            let family =
                families.last_mut().filter(|family| family.name == name && family.samples.is_empty());
            let family = family.ok_or_else(|| broken("a descriptor outside of its family"))?;
            let (place, is_valid) = match word {
                "UNIT" => (&mut family.unit, is_open_metrics && name.ends_with(&format!("_{rest}"))),
                // Quotation marks are escaped in OpenMetrics alone.
                "HELP" if is_open_metrics => (&mut family.help, unescaped(rest).is_some()),
                "HELP" => (&mut family.help, unescaped(&rest.replace('"', "")).is_some()),
                _ => return Err(broken("no descriptor")),
            };
            if !is_valid || place.replace(rest.to_owned()).is_some() {
                return Err(broken("a descriptor"));
            }
            continue;
        }
        let sample = sample(line).ok_or_else(|| broken("the grammar of a sample"))?;
        let family = families.last_mut().ok_or_else(|| broken("a sample without a family"))?;
        let suffixes: &[&str] = match family.kind.as_str() {
            "counter" if is_open_metrics => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            _ => &[""],
        };
        if !sample.name.strip_prefix(&family.name).is_some_and(|suffix| suffixes.contains(&suffix)) {
            return Err(broken("a sample of another family"));
        }
        if !seen.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(broken("a sample that was there"));
        }
        let range = if family.kind == "info" { 1.0..=1.0 } else { 0.0..=f64::MAX };
        if family.kind != "gauge" && !range.contains(&sample.value) {
            return Err(broken("the value"));
        }
        family.samples.push(sample);
    }
    for family in &families {
        let has_unit = ["_bytes", "_seconds"].iter().any(|unit| family.name.ends_with(unit));
        if family.help.is_none() || (is_open_metrics && has_unit != family.unit.is_some()) {
            return Err(format!("no help or no unit: {}", family.name));
        }
        if family.kind == "histogram" {
            check_histogram(family)?;
        }
    }
    Ok(families)
}

/// Checks that buckets rise to the count, and that each distribution has all its parts, one after the other.
fn check_histogram(family: &Family) -> Result<(), String> {
    let broken = |sample: &Sample| Err(format!("buckets: {sample:?}"));
    let (mut before, mut labels) = ((f64::NEG_INFINITY, 0.0), BTreeMap::new());
    for sample in &family.samples {
        let mut own = sample.labels.clone();
        let bound = own.remove("le");
        match &sample.name[family.name.len()..] {
            "_bucket" => {
                let bound = bound.as_deref().unwrap_or("NaN");
                let (text, bound) = (bound, bound.parse::<f64>().unwrap_or(f64::NAN));
                if before.0 == f64::NEG_INFINITY {
                    labels = own.clone();
                }
                let is_canonical = text == "+Inf" || text.contains(['.', 'e']);
                if own != labels || !(bound > before.0 && sample.value >= before.1) || !is_canonical {
                    return broken(sample);
                }
                before = (bound, sample.value);
            }
            "_count" if own == labels && before == (f64::INFINITY, sample.value) => {}
            "_sum" if own == labels && before.0 == f64::INFINITY => before = (f64::NEG_INFINITY, 0.0),
            _ => return broken(sample),
        }
    }
    Ok(())
}

/// `sample = metricname [labels] SP number`, without the timestamps and exemplars that nothing here has.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, quoted) = rest.split_once("=\"")?;
            // The closing quotation mark is the first that no backslash precedes which is not itself escaped.
            let bytes = quoted.as_bytes();
            let mut end = 0;
            while *bytes.get(end)? != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            let is_new = labels.insert(label.to_owned(), unescaped(&quoted[..end])?).is_none();
            if !is_new || !is_name(label, false) {
                return None;
            }
            rest = &quoted[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) if !more.starts_with('}') => rest = more,
                None if rest.starts_with('}') => {}
                _ => return None,
            }
        }
        rest = &rest[1..];
    }
    let value = number(rest.strip_prefix(' ')?)?;
    is_name(name, true).then(|| Sample { name: name.to_owned(), labels, value })
}

fn is_name(name: &str, with_colons: bool) -> bool {
    let is_fit =
        |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || with_colons && letter == ':';
    name.chars().all(is_fit) && !name.starts_with(|first: char| first.is_ascii_digit()) && !name.is_empty()
}

/// `escaped-string`; `None` when a quotation mark is bare, or a backslash escapes what it should not.
fn unescaped(text: &str) -> Option<String> {
    let (mut out, mut letters) = (String::new(), text.chars());
    while let Some(letter) = letters.next() {
        out.push(match letter {
            '"' => return None,
            '\\' => match letters.next()? {
                'n' => '\n',
                escaped @ ('"' | '\\') => escaped,
                _ => return None,
            },
            letter => letter,
        });
    }
    Some(out)
}

/// `number`: digits with a sign, a point and an exponent, or one of the words.
fn number(text: &str) -> Option<f64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text).to_ascii_lowercase();
    let is_real = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    (is_real || ["inf", "infinity", "nan"].contains(&digits.as_str())).then(|| text.parse().ok())?
}
