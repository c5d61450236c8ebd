//! The place of the measurement: the features that work there, and the storage under the path.

use maud::{Markup, html};
use serde_json::Value;

use super::html::listing;
use crate::environment::Environment;
use crate::units::bytes;

/// Returns the measured path and its storage: `/srv/data, ext4 on vda (256 GiB)`.
pub(crate) fn storage(environment: &Environment) -> Option<[String; 2]> {
    let path = environment.path.as_ref()?;
    let device = path.device.as_ref().map(|device| {
        let facts = device.model.iter().cloned().chain(device.size_bytes.map(bytes));
        let facts: Vec<String> = facts.collect();
        let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
        format!("{}{facts}", path.layers.first().map_or(&device.name, |layer| &layer.name))
    });
    let device = device.unwrap_or_else(|| "no block device".to_owned());
    let file_system = path.file_system.as_ref().map_or_else(String::new, |name| format!("{name} on "));
    Some([path.path.clone(), format!("{file_system}{device}")])
}

/// Returns the findings of `doctor`.
pub(crate) fn doctor(environment: &Environment) -> Markup {
    let rows = environment.checks.iter().map(|check| {
        let verdict = check.verdict.label();
        vec![
            html! { (check.group) " / " (check.name) },
            html! { span class=(verdict) { (verdict) } },
            html! { (check.why) },
            html! { (check.remedy.as_deref().unwrap_or("")) },
        ]
    });
    let title = "Features at this path";
    let heads = ["mechanism", "verdict", "observation", "remedy"];
    fold("doctor", title, listing("", "Features, each tested by calling it", &heads, rows))
}

/// Returns a section whose contents are folded.
pub(crate) fn fold(id: &str, title: &str, contents: Markup) -> Markup {
    html! { section.fold aria-labelledby=(id) { details { summary { h2 id=(id) { (title) } } (contents) } } }
}

/// Returns everything that is known about machine, file system and devices, as it is in the document.
pub(crate) fn environment(environment: &Environment) -> Markup {
    let mut facts = vec![("measured at".to_owned(), date(environment.time_unix_s))];
    let known = Environment { checks: Vec::new(), ..environment.clone() };
    let mut known = serde_json::to_value(known).unwrap_or_default();
    // Results of other programs, and of `forebay wait`, do not contain these figures.
    known.as_object_mut().into_iter().for_each(|known| known.retain(|_, value| *value != 0));
    collect("", &known, &mut facts);
    let rows = facts.iter().map(|(name, value)| vec![html! { (name) }, html! { (value) }]);
    fold("place", "Environment", listing("", "Environment", &["fact", "value"], rows))
}

/// Adds a value under its name in words, or each of its parts.
fn collect(name: &str, value: &Value, facts: &mut Vec<(String, String)>) {
    let inner = |key: &str| format!("{name} {}", key.replace('_', " ")).trim().to_owned();
    match value {
        Value::Object(parts) => parts.iter().for_each(|(key, value)| collect(&inner(key), value, facts)),
        Value::Array(parts) => {
            parts
                .iter()
                .enumerate()
                .for_each(|(index, part)| collect(&inner(&(index + 1).to_string()), part, facts));
        }
        Value::Null => {}
        Value::String(text) => facts.push((name.to_owned(), text.clone())),
        value => facts.push(match (name.strip_suffix(" bytes"), value.as_u64()) {
            (Some(name), Some(size)) => (name.to_owned(), bytes(size)),
            _ => (name.to_owned(), value.to_string()),
        }),
    }
}

/// Formats a time as `2026-11-22 01:05 UTC`.
pub(crate) fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Days are counted from 1 March of the year 0, so that the leap day is the last day of its year.
    // 400 years have 146,097 days, and from March on five months have 153.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_fact_is_a_row_with_its_unit() {
        let mut known =
            Environment { memory_total_bytes: 8 << 30, cpus_allowed: 2, ..Environment::default() };
        known.mitigations.insert("spectre_v1".to_owned(), "none".to_owned());
        let page = environment(&known).into_string();
        for row in
            ["memory total</th><td>8 GiB", "mitigations spectre v1</th><td>none", "cpus allowed</th><td>2"]
        {
            assert!(page.contains(row), "{row}: {page}");
        }
        assert!(
            !page.contains("memory limit") && !page.contains("cpus online"),
            "what is unknown has no row: {page}"
        );
    }

    #[test]
    fn seconds_become_a_date() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
    }
}
