//! The place of the measurement: the features that work there, and the storage under the path.

use maud::{Markup, html};

use crate::environment::{DeviceInfo, Environment};
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
    html! {
        (fold("doctor", "Features at this path", html! {
            p { "Each feature was tested by calling it." }
            div.scroll tabindex="0" role="region" aria-label="Features at this path" {
                table {
                    caption.unseen { "Features at this path" }
                    thead { tr { @for head in ["mechanism", "verdict", "observation", "remedy"] { th scope="col" { (head) } } } }
                    tbody {
                        @for check in &environment.checks {
                            tr {
                                th scope="row" { (check.group) " / " (check.name) }
                                td class=(check.verdict.label()) { (check.verdict.label()) }
                                td { (check.why) }
                                td { (check.remedy.as_deref().unwrap_or("")) }
                            }
                        }
                    }
                }
            }
        }))
    }
}

/// Returns a section whose contents are folded.
pub(crate) fn fold(id: &str, title: &str, contents: Markup) -> Markup {
    html! { section.fold aria-labelledby=(id) { details { summary { h2 id=(id) { (title) } } (contents) } } }
}

/// Returns kernel, processor, memory, file system and devices.
pub(crate) fn environment(environment: &Environment) -> Markup {
    let mut facts = vec![
        ("kernel".to_owned(), environment.kernel.clone()),
        ("architecture".to_owned(), environment.architecture.clone()),
    ];
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.push((name.to_owned(), value));
        }
    };
    fact("measured at", Some(date(environment.time_unix_s)));
    fact("distribution", environment.distribution.clone());
    fact("processor", environment.cpu_model.clone());
    fact("processors", Some(format!("{} of {} allowed", environment.cpus_allowed, environment.cpus_online)));
    fact(
        "virtual machine",
        Some(if environment.virtual_machine { "yes: the host may cache" } else { "no" }.to_owned()),
    );
    fact(
        "memory",
        Some(format!(
            "{}, {} available at the start",
            bytes(environment.memory_total_bytes),
            bytes(environment.memory_available_bytes)
        )),
    );
    fact(
        "memory allowed",
        environment.memory_limit_bytes.map(|limit| {
            format!("{} by {}", bytes(limit), environment.memory_limit_by.as_deref().unwrap_or("a cgroup"))
        }),
    );
    fact(
        "engine",
        environment.engine.as_ref().map(|engine| {
            format!(
                "driver {}, {} shards, {} degradations",
                engine.driver,
                engine.shards,
                engine.degradations.len()
            )
        }),
    );
    if let Some(path) = &environment.path {
        fact("path", Some(format!("{} ({})", path.path, path.kind)));
        fact("file system", path.file_system.clone());
        fact("mounted", path.mount_point.clone());
        fact("mount options", path.mount_options.clone());
        fact("free", path.free_bytes.map(bytes));
        let layers: Vec<String> =
            path.layers.iter().map(|layer| format!("{} ({})", layer.name, layer.kind)).collect();
        fact("block devices", (!layers.is_empty()).then(|| layers.join(" on ")));
        fact("device", path.device.as_ref().map(device_line));
    }
    html! {
        (fold("place", "Environment", html! {
            div.scroll tabindex="0" role="region" aria-label="Environment" {
                table {
                    caption.unseen { "Environment" }
                    thead { tr { th scope="col" { "fact" } th scope="col" { "value" } } }
                    tbody { @for (name, value) in &facts { tr { th scope="row" { (name) } td { (value) } } } }
                }
            }
        }))
    }
}

fn device_line(device: &DeviceInfo) -> String {
    let mut parts = vec![device.name.clone()];
    parts.extend(device.size_bytes.map(bytes));
    parts.extend(device.model.clone());
    parts.extend(device.scheduler.as_ref().map(|name| format!("scheduler {name}")));
    parts.extend(device.request_bytes_max.map(|max| format!("requests up to {}", bytes(max))));
    parts.extend(device.queue_depth.map(|count| format!("{count} requests a queue")));
    parts.extend(device.queues.map(|count| format!("{count} queues")));
    parts.extend(device.write_cache.as_ref().map(|cache| format!("{cache} cache")));
    parts.extend(device.fua.map(|fua| if fua { "FUA" } else { "no FUA" }.to_owned()));
    parts.extend(device.io_poll.map(|poll| if poll { "poll queues" } else { "no poll queues" }.to_owned()));
    parts.extend(device.numa_node.map(|node| format!("NUMA node {node}")));
    parts.join(", ")
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
    fn seconds_become_a_date() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
    }
}
