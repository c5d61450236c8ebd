//! The page: one file that needs nothing else, works offline, and holds every number it shows.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::columns::{Column, groups};
use super::sections;
use crate::doctor::text::machine_line;
use crate::doctor::units::bytes;
use crate::environment::{DeviceInfo, Environment};
use crate::output::PAGE_MARK;
use crate::result::Report;

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let title = report
        .environment
        .path
        .as_ref()
        .map_or_else(|| "Forebay".to_owned(), |path| format!("Forebay on {}", path.path));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                (PreEscaped(PAGE_MARK))
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { (title) }
                    p.soft { (machine_line(&report.environment)) }
                    @if !report.environment.optimized_build {
                        p.note { "Measured with an unoptimised build: the figures are not worth much." }
                    }
                    @if !report.verdicts.is_empty() {
                        h2 { "What the numbers say" }
                        ul.verdicts { @for verdict in &report.verdicts { li { (capital(verdict)) "." } } }
                    }
                    (sections::experiments(&report.experiments))
                    (doctor(&report.environment))
                    (environment(&report.environment))
                    (legend(report))
                    p.small { "Written by forebay " (report.forebay) ". All numbers as JSON are in this page's source." }
                }
                // "<" cannot end the element early, and JSON reads the escape as the same character.
                script type="application/json" id="forebay-result" {
                    (PreEscaped(report.to_json().unwrap_or_default().replace('<', "\\u003c")))
                }
            }
        }
    }
    .into_string()
}

fn doctor(environment: &Environment) -> Markup {
    html! {
        h2 { "What works here" }
        p { "Everything that can be tried was tried by calling it." }
        div.scroll {
            table {
                thead { tr { th { "verdict" } th { "mechanism" } th { "what was seen" } th { "remedy" } } }
                tbody {
                    @for check in &environment.checks {
                        tr {
                            td class=(check.verdict.label()) { (check.verdict.label()) }
                            td { (check.group) " / " (check.name) }
                            td { (check.why) }
                            td { (check.remedy.as_deref().unwrap_or("")) }
                        }
                    }
                }
            }
        }
    }
}

fn environment(environment: &Environment) -> Markup {
    let mut facts = vec![
        ("kernel".to_owned(), environment.kernel.clone()),
        ("architecture".to_owned(), environment.architecture.clone()),
    ];
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.push((name.to_owned(), value));
        }
    };
    fact("measured at", Some(format!("{} seconds since 1970 (UTC)", environment.time_unix_s)));
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
        h2 { "Where it was measured" }
        div.scroll {
            table { tbody { @for (name, value) in &facts { tr { th { (name) } td { (value) } } } } }
        }
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

fn legend(report: &Report) -> Markup {
    let mut columns: Vec<&Column> = Vec::new();
    for column in groups(&report.experiments).iter().flat_map(|group| Column::present(group)) {
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    html! {
        h2 { "What each column counts" }
        div.scroll {
            table { tbody { @for column in &columns { tr { th { (column.heading) } td { (column.meaning) } } } } }
        }
    }
}

fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Check;
    use crate::result::{Experiment, Metrics, Row, Sample, metric};

    fn report() -> Report {
        let mut metrics = Metrics::default();
        metrics.set(metric::MB_PER_S, 1000.0);
        let mut experiment = Experiment::new("scan", "Each row reads the file.");
        experiment.rows.push(Row::from_samples("buffered", vec![Sample { repeat: 0, metrics }]));
        let environment = Environment {
            checks: vec![Check::degraded("memory", "memlock", "</script><b>", "raise it")],
            ..Environment::default()
        };
        let mut report = Report::new(environment, vec![experiment]);
        report.verdicts.push("this is a verdict".to_owned());
        report
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = page(&report());
        assert!(page.starts_with("<!DOCTYPE html>"));
        for outside in ["http://", "https://", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(page.contains("This is a verdict."));
        assert!(page.contains("Each row reads the file."));
    }

    #[test]
    fn text_cannot_break_out_of_its_place() {
        let page = page(&report());
        assert_eq!(page.matches("</script>").count(), 1);
        assert!(!page.contains("<b>"));
    }

    #[test]
    fn the_page_carries_its_own_numbers_and_mark() {
        let page = page(&report());
        assert!(page.contains(PAGE_MARK));
        let start =
            page.find("id=\"forebay-result\">").expect("the element") + "id=\"forebay-result\">".len();
        let end = page.rfind("</script>").expect("its end");
        let back: Report = serde_json::from_str(&page[start..end]).expect("the schema");
        assert_eq!(back.experiments[0].rows[0].metrics.get(metric::MB_PER_S), Some(1000.0));
    }
}
